"""Written patches on disk: both files or none."""

from pathlib import Path

import pytest

from auxtap.checkout import publication
from auxtap.checkout.publication import find_patch, patch_files, publish_patch, read_published
from auxtap.core.errors import ExitCode, PatchError
from auxtap.core.files import publish_bytes


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_publishes_both(tmp_path: Path) -> None:
    files = publish_patch(tmp_path / "out", "0.5.9", b"patch", b"manifest")
    assert contents(tmp_path) == {
        "out/sglang-0.5.9/capture.patch": b"patch",
        "out/sglang-0.5.9/manifest.json": b"manifest",
    }
    assert files == patch_files(tmp_path / "out/sglang-0.5.9")


@pytest.mark.parametrize("earlier", [True, False])
def test_publishes_none_when_the_second_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: bool) -> None:
    if earlier:
        publish_patch(tmp_path, "0.5.9", b"old patch", b"old manifest")
    before = contents(tmp_path)

    def full(path: Path, data: bytes) -> None:
        if path.suffix == ".json":
            raise OSError(28, "No space left on device", str(path))
        publish_bytes(path, data)

    monkeypatch.setattr(publication, "publish_bytes", full)
    with pytest.raises(PatchError, match="No space left") as caught:
        publish_patch(tmp_path, "0.5.9", b"new patch", b"new manifest")
    assert caught.value.exit_code == ExitCode.PATCH
    assert contents(tmp_path) == before


def test_a_release_is_one_folder_name(tmp_path: Path) -> None:
    files = publish_patch(tmp_path, "../0.5.9+3.gabc/x", b"", b"")
    assert files.patch.parent == tmp_path / "sglang-.._0.5.9+3.gabc_x"


def test_finds_a_patch_by_each_of_its_names(tmp_path: Path) -> None:
    files = publish_patch(tmp_path, "0.5.9", b"patch", b"{}")
    assert find_patch(files.patch) == find_patch(files.manifest) == find_patch(files.patch.parent) == files
    (tmp_path / "other.txt").touch()
    for target in (tmp_path, tmp_path / "other.txt", tmp_path / "nowhere.patch"):
        assert find_patch(target) is None


def test_refuses_half_a_patch(tmp_path: Path) -> None:
    files = publish_patch(tmp_path, "0.5.9", b"patch", b"{}")
    with pytest.raises(PatchError, match="not a manifest"):
        read_published(files)
    files.manifest.unlink()
    with pytest.raises(PatchError, match="cannot read"):
        read_published(files)
