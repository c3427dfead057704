"""Written patches on disk: whole or in parts, all files or none."""

from pathlib import Path

import pytest

from auxtap.checkout import publication
from auxtap.checkout.publication import (
    find_patch,
    patch_files,
    publish_parts,
    publish_patch,
    read_published,
    remove_unused_tables,
)
from auxtap.core.errors import ExitCode, PatchError
from auxtap.core.files import publish_bytes
from auxtap.rewriters.patch.diff import PatchSet, write_patch
from auxtap.rewriters.patch.manifest import Origin, manifest_bytes
from auxtap.rewriters.patch.plan import plan_capture
from auxtap.tests.shaped import shaped_tree


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


@pytest.fixture
def written() -> tuple[PatchSet, bytes]:
    tree = shaped_tree()
    patch_set = write_patch(tree, plan_capture(tree, ("llama",), (3,)))
    return patch_set, manifest_bytes(patch_set, Origin("checkout", "0" * 64), "1.0", ())


def test_parts_are_read_as_the_whole_patch(tmp_path: Path, written: tuple[PatchSet, bytes]) -> None:
    patch_set, manifest = written
    publish_patch(tmp_path, "0.5.9", patch_set.patch, manifest)
    files = publish_parts(tmp_path, patch_set, manifest)
    names = sorted(contents(tmp_path))
    assert names[:2] == ["sglang-0.5.9/inserted.patch", "sglang-0.5.9/manifest.json"]
    assert [name.partition("-")[0] for name in names[2:]] == ["tables/backbones", "tables/hazards"]
    assert b"srt/auxtap/" not in files.patch.read_bytes()
    assert find_patch(files.manifest.parent) == find_patch(files.manifest) == find_patch(files.patch) == files
    assert read_published(files).patch == patch_set.patch


def test_parts_of_another_tap_are_refused(tmp_path: Path, written: tuple[PatchSet, bytes]) -> None:
    patch_set, manifest = written
    files = publish_parts(tmp_path, patch_set, manifest)
    (table,) = (tmp_path / "tables").glob("backbones-*")
    table.write_bytes(table.read_bytes() + b"\n")
    with pytest.raises(PatchError, match=r"is for another backbones\.py than this auxtap's") as caught:
        read_published(files)
    assert caught.value.hint is not None and "stands by itself" in caught.value.hint
    table.unlink()
    with pytest.raises(PatchError, match="is for another"):
        read_published(files)


def test_tables_that_no_manifest_names_are_removed(tmp_path: Path, written: tuple[PatchSet, bytes]) -> None:
    files = publish_parts(tmp_path, *written)
    publish_bytes(tmp_path / "tables/backbones-000000000000.txt", b"REFUSED = {}\n")
    remove_unused_tables(tmp_path)
    assert read_published(files).patch == written[0].patch
    assert len(list((tmp_path / "tables").glob("backbones-*"))) == 1
