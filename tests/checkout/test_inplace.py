"""An installed package patched where it lies: the released files only, with a record, and put back byte for byte."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from auxtap import cli
from auxtap.checkout import inplace
from auxtap.checkout.inplace import (
    FOLDER,
    check_package,
    find_patched_package,
    package_folder,
    patch_package,
    read_package_record,
    restore_package,
)
from auxtap.checkout.source import Source, open_source
from auxtap.commands.serve_spec import Wanted, patched_spec
from auxtap.core.cache import CacheLayout
from auxtap.core.errors import ExitCode, PatchError, WorktreeError
from auxtap.core.files import publish_bytes
from auxtap.core.source_tree import PACKAGE_ROOT
from auxtap.rewriters.patch.diff import PatchSet, write_patch
from auxtap.rewriters.patch.plan import plan_capture
from auxtap.rewriters.patch.registry import DEFAULT_MODELS
from auxtap.tests.checkout.conftest import Index
from auxtap.tests.shaped import RUNNER, git, shaped_files, shaped_tree, write_files

INNER_RUNNER = RUNNER.relative_to(PACKAGE_ROOT)


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return every file below a folder with its bytes and mode."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) for path in files}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a site-packages folder with the shaped release, another package, bytecode and a file with a mode."""
    site = tmp_path / "env/lib/python3.11/site-packages"
    write_files(site, {path.relative_to("python"): data for path, data in shaped_files().items()})
    write_files(site, {PurePosixPath("other/__init__.py"): b"", PurePosixPath("sglang/srt/kernel.so"): b"x"})
    (site / "sglang" / INNER_RUNNER).chmod(0o640)
    return site


@pytest.fixture
def package(site: Path) -> Path:
    return package_folder(site)


@pytest.fixture
def source(package: Path, cache: CacheLayout) -> Source:
    return open_source(str(package), cache)


@pytest.fixture
def patch_set(source: Source) -> PatchSet:
    return write_patch(source.tree, plan_capture(source.tree, DEFAULT_MODELS, (3, 5)))


def test_patches_and_puts_back(site: Path, package: Path, source: Source, patch_set: PatchSet) -> None:
    before = contents(site)
    patched = patch_package(source, patch_set, package, shaped_tree())
    assert patched == check_package(package) == read_package_record(package)
    assert (patched.release, patched.layers, patched.patch_digest) == ("0.5.9", (3, 5), patch_set.digest)
    for change in patch_set.changes:
        assert (site / change.path.relative_to("python")).read_bytes() == change.after
    for file in patch_set.new_files:
        assert (site / file.path.relative_to("python")).read_bytes() == file.data
    assert stat.S_IMODE((package / INNER_RUNNER).stat().st_mode) == 0o640
    assert find_patched_package(site) == find_patched_package(package) == package
    assert not list((package / FOLDER).rglob("*.py"))
    restore_package(package)
    assert contents(site) == before
    assert find_patched_package(site) is None


def test_bytecode_of_the_tap_does_not_stay(package: Path, source: Source, patch_set: PatchSet) -> None:
    before = contents(package)
    patch_package(source, patch_set, package, shaped_tree())
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(package / "srt/auxtap")], check=True)
    restore_package(package)
    assert contents(package) == before


def test_a_linked_file_is_replaced_and_its_other_name_left_alone(
    tmp_path: Path, package: Path, source: Source, patch_set: PatchSet
) -> None:
    """Installers link the files of an environment to a store that other environments use as well."""
    stored = tmp_path / "store.py"
    os.link(package / INNER_RUNNER, stored)
    before = stored.read_bytes()
    patch_package(source, patch_set, package, shaped_tree())
    assert stored.read_bytes() == before != (package / INNER_RUNNER).read_bytes()


def refused(expected: str, source: Source, patch_set: PatchSet, package: Path) -> None:
    before = contents(package)
    with pytest.raises(WorktreeError, match=expected):
        patch_package(source, patch_set, package, shaped_tree())
    assert contents(package) == before


@pytest.mark.parametrize("change", ["edited", "missing", "elsewhere"])
def test_refuses_what_is_not_as_it_was_released(change: str, package: Path, cache: CacheLayout) -> None:
    """Also where the file is none that the patch touches, and the patch would fit."""
    file = package / ("srt/configs/model_config.py" if change == "elsewhere" else INNER_RUNNER)
    if change == "missing":
        file = package / "srt/distributed/parallel_state.py"
        released = file.read_bytes()
    else:
        released = file.read_bytes()
        file.write_bytes(released + b"# mine\n")
    source = open_source(str(package), cache)
    patch_set = write_patch(source.tree, plan_capture(source.tree, DEFAULT_MODELS, (3, 5)))
    if change == "missing":
        file.unlink()
    refused(f"1 file is not what SGLang 0.5.9 was released with in .*{file.name}", source, patch_set, package)
    file.write_bytes(released)


def test_refuses_what_changed_since_it_was_read(package: Path, source: Source, patch_set: PatchSet) -> None:
    (package / "srt/auxtap").mkdir()
    (package / "srt/auxtap/gate.py").write_bytes(b"mine = True\n")
    refused("1 file is changed since it was read in .*gate.py", source, patch_set, package)


def test_refuses_a_second_time(package: Path, source: Source, patch_set: PatchSet, cache: CacheLayout) -> None:
    patch_package(source, patch_set, package, shaped_tree())
    refused("is patched already", source, patch_set, package)
    again = open_source(str(package), cache)
    with pytest.raises(PatchError, match="patched already"):
        plan_capture(again.tree, DEFAULT_MODELS, (3, 5))


def test_refuses_where_nothing_can_be_written(
    package: Path, source: Source, patch_set: PatchSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Said by the system rather than by a mode: root may write everywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    refused("cannot be written", source, patch_set, package)


def test_a_disk_that_fills_up_leaves_everything_as_it_was(
    package: Path, source: Source, patch_set: PatchSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, n_writes = publish_bytes, 0

    def fill_up(path: Path, data: bytes) -> None:
        nonlocal n_writes
        n_writes += 1
        if n_writes == len(patch_set.changes) + len(patch_set.new_files) + 2:
            raise OSError(28, "No space left on device", str(path))
        real(path, data)

    monkeypatch.setattr(inplace, "publish_bytes", fill_up)
    refused("No space left on device", source, patch_set, package)


@pytest.mark.parametrize("n_writes", [1, 4, 8, 14, 17])
def test_a_run_that_was_killed_can_be_put_back(
    n_writes: int, package: Path, source: Source, patch_set: PatchSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(BaseException):
        pass

    real, seen = publish_bytes, 0

    def kill(path: Path, data: bytes) -> None:
        nonlocal seen
        if seen == n_writes:
            raise KilledError
        seen += 1
        real(path, data)

    before = contents(package)
    with monkeypatch.context() as patched:
        patched.setattr(inplace, "publish_bytes", kill)
        with pytest.raises(KilledError):
            patch_package(source, patch_set, package, shaped_tree())
    if find_patched_package(package) is not None:
        with pytest.raises(WorktreeError, match="half patched"):
            check_package(package)
        restore_package(package)
        assert contents(package) == before
    else:
        # Killed before the record: nothing of the package was written, and applying anew goes on.
        kept = {name: file for name, file in contents(package).items() if not name.startswith(FOLDER)}
        assert kept == before
        patch_package(source, patch_set, package, shaped_tree())


def test_restoring_keeps_what_a_person_wrote(package: Path, source: Source, patch_set: PatchSet) -> None:
    before = contents(package)
    patch_package(source, patch_set, package, shaped_tree())
    (package / INNER_RUNNER).write_bytes(b"mine = True\n")
    with pytest.raises(WorktreeError, match="changed after auxtap apply"):
        restore_package(package)
    with pytest.raises(WorktreeError, match="not what auxtap apply left"):
        check_package(package)
    assert (package / INNER_RUNNER).read_bytes() == b"mine = True\n"
    restore_package(package, force=True)
    assert contents(package) == before


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 9}', '{"schema": 1, "release": "0.5.9"}'])
def test_a_record_that_cannot_be_read(text: str, package: Path, source: Source, patch_set: PatchSet) -> None:
    patch_package(source, patch_set, package, shaped_tree())
    (package / FOLDER / "record.json").write_text(text)
    with pytest.raises(WorktreeError, match="cannot be read"):
        restore_package(package, force=True)


def test_a_record_that_points_elsewhere(tmp_path: Path, package: Path, source: Source, patch_set: PatchSet) -> None:
    patch_package(source, patch_set, package, shaped_tree())
    record = package / FOLDER / "record.json"
    record.write_text(record.read_text().replace(f'"{INNER_RUNNER}"', '"../../victim.py"'))
    victim = package.parent.parent / "victim.py"
    victim.write_bytes(b"mine\n")
    with pytest.raises(WorktreeError, match="a path leaves the package"):
        restore_package(package, force=True)
    assert victim.read_bytes() == b"mine\n"


def test_a_package_within_a_repository(tmp_path: Path, cache: CacheLayout) -> None:
    """A virtual environment within a checkout: git is not asked, and says afterwards that nothing changed."""
    root = tmp_path / "mine"
    write_files(root / "venv", {path.relative_to("python"): data for path, data in shaped_files().items()})
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=Begin")
    package = package_folder(root / "venv")
    source = open_source(str(package), cache)
    patch_set = write_patch(source.tree, plan_capture(source.tree, DEFAULT_MODELS, (3, 5)))
    patch_package(source, patch_set, package, shaped_tree())
    assert str(INNER_RUNNER) in git(root, "status", "--porcelain")
    restore_package(package)
    assert git(root, "status", "--porcelain") == ""


def test_windows_line_ends(package: Path, cache: CacheLayout) -> None:
    """A release whose files end their lines as Windows does is patched in that way."""
    files = {path: data.replace(b"\n", b"\r\n") for path, data in shaped_files().items()}
    write_files(package, {path.relative_to(PACKAGE_ROOT): data for path, data in files.items()})
    source = open_source(str(package), cache)
    released = replace(shaped_tree(), files={path: data for path, data in files.items() if path.suffix == ".py"})
    patch_set = write_patch(source.tree, plan_capture(source.tree, DEFAULT_MODELS, (3, 5)))
    patch_package(source, patch_set, package, released)
    data = (package / INNER_RUNNER).read_bytes()
    assert data.count(b"\r\n") == data.count(b"\n") > files[RUNNER].count(b"\r\n")


def test_the_commands(
    site: Path, package: Path, release: Index, cache: CacheLayout, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Apply in place and revert as a person runs them; the release itself comes from an index."""
    monkeypatch.setenv("AUXTAP_CACHE", str(cache.root))
    before = contents(site)
    assert cli.run(["apply", str(site)]) == ExitCode.USAGE
    assert cli.run(["apply", str(site), "--in-place", "--worktree", "wt"]) == ExitCode.USAGE
    assert cli.run(["apply", str(site / "other"), "--in-place"]) == ExitCode.WORKTREE
    capsys.readouterr()
    assert cli.run(["apply", str(site), "--in-place", "--json"]) == ExitCode.DONE
    shown = capsys.readouterr()
    record = json.loads(shown.out)
    assert (record["package"], record["release"]) == (str(package), "0.5.9")
    assert f"auxtap serve --worktree {package} --python" in shown.err
    assert cli.run(["apply", str(site), "--in-place"]) != ExitCode.DONE
    model = site.parent / "model"
    write_files(model, {PurePosixPath("config.json"): b'{"num_hidden_layers": 61}'})
    wanted = Wanted(Path(sys.executable), None, None, False, site.parent / "spool", "127.0.0.1", 0, None, ())
    spec = patched_spec(package, str(model), wanted)
    assert (spec.tree, spec.release, spec.layers) == (None, "0.5.9", (3, 31, 59))
    assert (spec.patch_digest, spec.source_digest) == (record["patch_sha256"], record["source_digest"])
    assert "--disable-radix-cache" in spec.required_arguments
    assert cli.run(["revert", str(site)]) == ExitCode.DONE
    assert "as they were" in capsys.readouterr().out
    assert contents(site) == before


def test_what_is_no_package(tmp_path: Path) -> None:
    with pytest.raises(WorktreeError, match="no installed sglang package"):
        package_folder(tmp_path)
    with pytest.raises(WorktreeError, match="was not patched"):
        restore_package(tmp_path)
