"""Sources: real git repositories, packages on disk, and wheels."""

import os
import shutil
from pathlib import Path, PurePosixPath

import pytest

from auxtap.checkout import source
from auxtap.checkout.source import Source, open_source
from auxtap.core.cache import CacheLayout
from auxtap.core.errors import ExitCode, SourceError
from auxtap.core.source_tree import PACKAGE_ROOT, SRT_ROOT
from auxtap.tests.checkout.conftest import WHEEL, Index
from auxtap.tests.shaped import BATCH, RUNNER, git, make_checkout, shaped_files, write_files

VERSION = PACKAGE_ROOT / "_version.py"


def state(repository: Path) -> tuple[str, ...]:
    """Return everything of a repository that a command must leave alone."""
    index = repository / ".git/index"
    return (
        git(repository, "status", "--porcelain"),
        git(repository, "for-each-ref"),
        git(repository, "stash", "list"),
        git(repository, "rev-parse", "HEAD"),
        (repository / ".git/HEAD").read_text(),
        str(index.stat().st_mtime_ns) + index.read_bytes().hex(),
    )


def refused(spec: str, cache: CacheLayout) -> SourceError:
    with pytest.raises(SourceError) as caught:
        open_source(spec, cache)
    assert caught.value.exit_code == ExitCode.SOURCE and caught.value.hint
    return caught.value


def test_a_checkout(tmp_path: Path, cache: CacheLayout) -> None:
    checkout = make_checkout(tmp_path / "sgl")
    opened = open_source(str(checkout), cache)
    assert (opened.kind, opened.tree.release, opened.repository) == ("checkout", "0.5.9", checkout)
    assert opened.commit == opened.tree.commit == git(checkout, "rev-parse", "HEAD")
    assert dict(opened.tree.files) == {path: data for path, data in shaped_files().items() if path.suffix == ".py"}
    assert list(opened.tree.files) == sorted(opened.tree.files)


def make_dirty(checkout: Path) -> None:
    """Change one file, stage a new one, leave another untracked, remove one, and have git ignore a fifth."""
    (checkout / RUNNER).write_text("dirty = True\n")
    for name in ("new.py", "untracked.py", "ignored.py"):
        (checkout / SRT_ROOT / name).write_text(f"name = {name!r}\n")
    git(checkout, "add", str(SRT_ROOT / "new.py"))
    (checkout / BATCH).unlink()
    (checkout / ".git/info/exclude").write_text("ignored.py\n")


CHANGED = tuple(sorted((RUNNER, SRT_ROOT / "new.py", SRT_ROOT / "untracked.py", BATCH)))


@pytest.mark.parametrize("inner", ["", "python", "python/sglang"])
def test_a_dirty_checkout_is_read_as_it_is_on_disk_however_it_is_named(
    inner: str, tmp_path: Path, cache: CacheLayout
) -> None:
    checkout = make_checkout(tmp_path / "sgl")
    make_dirty(checkout)
    before = state(checkout)
    said: list[str] = []
    opened = open_source(str(checkout / inner), cache, said.append)
    assert opened.kind == "checkout" and opened.tree.changed == CHANGED
    assert opened.tree.files[RUNNER] == b"dirty = True\n" and BATCH not in opened.tree.files
    assert SRT_ROOT / "untracked.py" in opened.tree.files and SRT_ROOT / "ignored.py" not in opened.tree.files
    head = git(checkout, "rev-parse", "HEAD")
    assert said == [
        f"{checkout} is read as it is on disk; 4 files differ from commit {head[:12]}: {', '.join(map(str, CHANGED))}"
    ]
    assert opened.tree.commit == head and state(checkout) == before
    # The commit that everything after is done with holds just what was read.
    names = git(opened.repository, "ls-tree", "-r", "--name-only", opened.commit).splitlines()
    assert set(names) == set(map(str, opened.tree.files))


def test_a_ref_is_the_commit_whatever_is_on_disk(tmp_path: Path, cache: CacheLayout) -> None:
    checkout = make_checkout(tmp_path / "sgl")
    clean = open_source(str(checkout / "python"), cache)
    make_dirty(checkout)
    said: list[str] = []
    opened = open_source(f"{checkout}@HEAD", cache, said.append)
    assert (opened.tree.files, opened.tree.changed, said) == (clean.tree.files, (), [])
    assert (opened.repository, opened.commit) == (clean.repository, clean.commit) == (checkout, opened.tree.commit)


def test_what_git_does_not_tell_of_is_seen_all_the_same(tmp_path: Path, cache: CacheLayout) -> None:
    checkout = make_checkout(tmp_path / "sgl")
    git(checkout, "update-index", "--assume-unchanged", str(RUNNER))
    (checkout / RUNNER).write_text("dirty = True\n")
    assert git(checkout, "status", "--porcelain") == ""
    assert open_source(str(checkout), cache).tree.changed == (RUNNER,)
    (checkout / RUNNER).unlink()
    (checkout / RUNNER).symlink_to("/etc/hostname")
    assert RUNNER not in open_source(str(checkout), cache).tree.files


def test_a_ref_a_tag_and_a_detached_head(tmp_path: Path, cache: CacheLayout) -> None:
    checkout = make_checkout(tmp_path / "sgl")
    write_files(checkout, {VERSION: b"__version__ = '0.5.10'\n"})
    git(checkout, "commit", "--quiet", "--all", "--message=Next")
    old, new = git(checkout, "rev-parse", "v0.5.9"), git(checkout, "rev-parse", "HEAD")
    assert open_source(f"{checkout}@v0.5.9", cache).commit == old
    assert open_source(f"{checkout}@{old[:10]}", cache).tree.release == "0.5.9"
    assert open_source(f"{checkout}@main", cache).tree.release == "0.5.10"
    git(checkout, "checkout", "--quiet", "--detach", "v0.5.9")
    assert open_source(str(checkout), cache).commit == old
    assert open_source(f"{checkout}@main", cache).commit == new


def test_a_path_with_an_at_sign(tmp_path: Path, cache: CacheLayout) -> None:
    checkout = make_checkout(tmp_path / "sgl@home")
    assert open_source(str(checkout), cache).kind == "checkout"
    assert open_source(f"{checkout}@v0.5.9", cache).kind == "checkout"


def test_the_release_of_a_checkout_without_a_version_file(tmp_path: Path, cache: CacheLayout) -> None:
    files = {path: data for path, data in shaped_files().items() if path != VERSION}
    checkout = make_checkout(tmp_path / "sgl", files)
    assert open_source(str(checkout), cache).tree.release == "0.5.9"
    git(checkout, "commit", "--quiet", "--allow-empty", "--message=Ours")
    head = git(checkout, "rev-parse", "HEAD")
    assert open_source(str(checkout), cache).tree.release == f"0.5.9+1.g{head[:8]}"
    git(checkout, "tag", "--delete", "v0.5.9")
    assert open_source(str(checkout), cache).tree.release == "unknown"


def test_version_files_are_data(tmp_path: Path, cache: CacheLayout) -> None:
    hostile = b"import os\nos._exit(3)\n__version__ = os.environ['HOME']\n"
    checkout = make_checkout(tmp_path / "sgl", {**shaped_files(), VERSION: hostile})
    assert open_source(str(checkout), cache).tree.release == "0.5.9"


def test_the_digest_does_not_depend_on_git(tmp_path: Path, cache: CacheLayout) -> None:
    first = open_source(str(make_checkout(tmp_path / "one")), cache)
    git(tmp_path / "one", "commit", "--quiet", "--allow-empty", "--message=Again")
    again = open_source(str(tmp_path / "one"), cache)
    package = tmp_path / "site-packages"
    write_files(package, {path.relative_to("python"): data for path, data in shaped_files().items()})
    installed = open_source(str(package / "sglang"), cache)
    assert first.digest == again.digest == installed.digest and first.commit != again.commit
    other = make_checkout(tmp_path / "two", {**shaped_files(), RUNNER: b"x = 1\n"})
    assert open_source(str(other), cache).digest != first.digest


def test_hooks_signing_and_git_variables_do_not_matter(
    tmp_path: Path, cache: CacheLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = make_checkout(tmp_path / "sgl")
    other = make_checkout(tmp_path / "other", {**shaped_files(), RUNNER: b"other = 1\n"})
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    assert open_source(str(checkout), cache).tree.files[RUNNER] == shaped_files()[RUNNER]
    assert os.environ["GIT_DIR"] == str(other / ".git")


@pytest.mark.parametrize("inner", ["", "sglang"])
def test_a_package(tmp_path: Path, cache: CacheLayout, inner: str) -> None:
    package = tmp_path / "site-packages"
    write_files(package, {path.relative_to("python"): data for path, data in shaped_files().items()})
    write_files(package, {PurePosixPath("sglang/srt/__pycache__/a.pyc"): b"x", PurePosixPath("sglang/b.so"): b"x"})
    opened = open_source(str(package / inner), cache)
    assert (opened.kind, opened.tree.release) == ("package", "0.5.9")
    assert RUNNER in opened.tree.files
    listed = git(opened.repository, "ls-tree", "-r", "--name-only", opened.commit).splitlines()
    assert sorted(listed) == sorted(map(str, shaped_files()))


def test_an_unpacked_tree_within_another_repository(tmp_path: Path, cache: CacheLayout) -> None:
    outer = tmp_path / "mine"
    outer.mkdir()
    git(outer, "init", "--quiet")
    write_files(outer / "third_party/sgl", shaped_files())
    opened = open_source(str(outer / "third_party/sgl"), cache)
    assert opened.kind == "package"
    assert set(opened.tree.files) == {path for path in shaped_files() if path.suffix == ".py"}


def test_the_same_package_has_the_same_commit_everywhere(tmp_path: Path) -> None:
    commits = set()
    for name in ("one", "two"):
        write_files(tmp_path / name, shaped_files())
        commits.add(open_source(str(tmp_path / name), CacheLayout(tmp_path / f"cache-{name}")).commit)
    assert len(commits) == 1


def test_a_release(release: Index, cache: CacheLayout) -> None:
    opened = open_source("pypi:0.5.9", cache)
    assert (opened.kind, opened.tree.release, opened.tree.origin) == ("pypi", "0.5.9", "pypi:0.5.9")
    assert RUNNER in opened.tree.files and SRT_ROOT / "layers/config.json" not in opened.tree.files
    assert "layers/config.json" in git(opened.repository, "ls-tree", "-r", "--name-only", opened.commit)
    asked = len(release.asked)
    assert open_source("pypi:0.5.9", cache) == opened
    assert len(release.asked) == asked


def test_a_tampered_release(release: Index, cache: CacheLayout) -> None:
    wheel = release.answers[f"/files/{WHEEL}"][2]
    release.hold(f"/files/{WHEEL}", wheel[:-1] + b"X")
    assert "is not the released file" in refused("pypi:0.5.9", cache).message
    assert not cache.sources.exists() and not list(cache.wheels.glob("*.whl"))


def test_a_missing_release(release: Index, cache: CacheLayout) -> None:
    assert "0.5.99" in refused("pypi:0.5.99", cache).message
    assert release.asked == []


def rebuilt(cache: CacheLayout, first: Source) -> None:
    again = open_source("pypi:0.5.9", cache)
    assert (again.commit, again.digest) == (first.commit, first.digest)
    assert dict(again.tree.files) == dict(first.tree.files)


def test_a_build_that_was_interrupted_is_done_again(
    release: Index, cache: CacheLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(BaseException):
        pass

    def killed(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr("auxtap.checkout.snapshot._replace_repository", killed)
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(KilledError):
            open_source("pypi:0.5.9", cache)
    assert [path.name for path in cache.sources.iterdir() if path.name.startswith("sglang-")] == []
    assert list(cache.sources.glob(".building-*"))
    first = open_source("pypi:0.5.9", cache)
    assert not list(cache.sources.glob(".building-*"))
    rebuilt(cache, first)


@pytest.mark.parametrize("damage", ["refs", "objects", "HEAD"])
def test_a_damaged_cached_repository_is_built_again(release: Index, cache: CacheLayout, damage: str) -> None:
    first = open_source("pypi:0.5.9", cache)
    hurt = first.repository / damage
    shutil.rmtree(hurt) if hurt.is_dir() else hurt.unlink()
    rebuilt(cache, first)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("", "empty"),
        ("{tmp}/nowhere", "does not exist"),
        ("{tmp}/nowhere@v1", "does not exist"),
        ("{tmp}/file", "is not a folder"),
        ("{tmp}/empty", "is not an SGLang tree"),
        ("{tmp}/empty@v1", "is not the root of a git repository"),
        ("{tmp}/other", "is not an SGLang tree"),
        ("{tmp}/unborn", "has no commit 'HEAD'"),
        ("{tmp}/sgl@v9", "has no commit 'v9'"),
        ("{tmp}/sgl@--all", "has no commit '--all'"),
        ("{tmp}/sgl@HEAD:python", "has no commit"),
    ],
)
def test_refuses(spec: str, text: str, tmp_path: Path, cache: CacheLayout) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "unborn").mkdir()
    git(tmp_path / "unborn", "init", "--quiet")
    make_checkout(tmp_path / "sgl")
    make_checkout(tmp_path / "other", {PurePosixPath("a.py"): b"x = 1\n"})
    assert text in refused(spec.format(tmp=tmp_path), cache).message


def test_modules_that_open_sources_load_nothing_heavy() -> None:
    assert not hasattr(source, "git") and not hasattr(source, "httpx")


@pytest.mark.network
def test_the_pinned_release(shared_cache: CacheLayout) -> None:
    opened = open_source("pypi:0.5.9", shared_cache)
    assert opened.commit == "289f8e74c91a405d0b3839c34c11744cd42153b7"
    assert opened.digest == "e753a9dbac38a7417aa7effa02129012feaab559940904cbe6671de02026b175"
    assert len(opened.tree.files) == 1404
