"""The static proof: it holds for what the tool writes, and each check says no to what it is there for."""

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from auxtap.checkout.publication import patch_files, read_published
from auxtap.checkout.source import Source, open_source
from auxtap.core.cache import CacheLayout
from auxtap.core.errors import PatchError
from auxtap.core.files import sha256_bytes, sha256_file
from auxtap.core.version import __version__
from auxtap.rewriters.patch.diff import write_patch
from auxtap.rewriters.patch.manifest import FileDigests, Manifest, Origin, manifest_bytes, read_manifest
from auxtap.rewriters.patch.plan import TAP_ROOT, plan_capture
from auxtap.rewriters.patch.registry import DEFAULT_MODELS
from auxtap.tests.shaped import LLAMA, RUNNER, git, make_checkout, shaped_files
from auxtap.verification.proof.proved import prove_patch
from auxtap.verification.static.static import verify_static
from auxtap.verification.static.verdicts import Proof, Rejected, Verified

GATE = TAP_ROOT / "gate.py"
CHECKS = (
    *(
        "identity",
        "digests before",
        "size",
        "regenerates",
        "values known",
        "applies",
        "digests after",
        "parses",
        "compiles",
    ),
    *("insertion only", "names bound", "inert statements", "gate alone", "refused twice", "reverses"),
)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return open_source(str(make_checkout(tmp_path / "sgl")), CacheLayout(tmp_path / "cache"))


@pytest.fixture
def written(source: Source) -> tuple[bytes, Manifest]:
    proved = prove_patch(source, DEFAULT_MODELS, (3, 5))
    return proved.patch_set.patch, read_manifest(proved.manifest, "it")


def rejected(proof: Proof) -> dict[str, str]:
    return {verdict.check: verdict.detail for verdict in proof.rejected}


def repaired(source: Source, patch: bytes, manifest: Manifest) -> Manifest:
    """Return a manifest that agrees with a changed patch, so that only the checks of its content are left."""
    scratch = source.repository.parent / "scratch"
    git(source.repository, "worktree", "add", "--quiet", "--detach", str(scratch), source.commit)
    (scratch.parent / "it.patch").write_bytes(patch)
    git(scratch, "apply", "--unidiff-zero", str(scratch.parent / "it.patch"))
    files = {
        path: FileDigests(digests.before, sha256_bytes((scratch / path).read_bytes()))
        for path, digests in manifest.files.items()
    }
    new = {path: sha256_bytes((scratch / path).read_bytes()) for path in manifest.new_files}
    git(source.repository, "worktree", "remove", "--force", str(scratch))
    return replace(manifest, files=files, new_files=new, patch_sha256=sha256_bytes(patch))


def test_holds_for_what_the_tool_writes(source: Source) -> None:
    proved = prove_patch(source, DEFAULT_MODELS, (3, 5))
    assert proved.proof.holds and proved.proof.passed == CHECKS
    assert all(isinstance(verdict, Verified) and verdict.detail for verdict in proved.proof.verdicts)


def test_leaves_the_repository_alone(source: Source, written: tuple[bytes, Manifest]) -> None:
    def files() -> list[tuple[str, str]]:
        found = (Path(folder, name) for folder, _, names in os.walk(source.repository) for name in names)
        return sorted((str(path), sha256_file(path)) for path in found)

    before = files()
    assert verify_static(source, *written).holds
    assert files() == before


def test_is_the_same_every_time(source: Source) -> None:
    first, second = (prove_patch(source, DEFAULT_MODELS, (3, 5)) for _ in range(2))
    assert first.patch_set.patch == second.patch_set.patch and first.manifest == second.manifest


@pytest.mark.parametrize(
    ("patch", "text"),
    [
        (b"", "empty"),
        (b"no patch\n", "line 1"),
        (b"diff --git a/x b/y\n", "renamed"),
        (b"diff --git a/../x b/../x\n", "leaves the tree"),
        (b"diff --git a/x b/x\nold mode 100644\n", "'index' was expected"),
        (b"diff --git a/x b/x\nindex 1..2\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n", "does more than insert"),
        (b"diff --git a/x b/x\nindex 1..2\n--- a/x\n+++ b/x\n@@ -1,0 +2,2 @@\n+a\n", "was expected, found the end"),
        (b"diff --git a/x b/x\nindex 1..2\n--- a/x\n+++ b/x\n@@ -1,0 +2 @@\n+a", "in the middle of a line"),
    ],
)
def test_form(source: Source, written: tuple[bytes, Manifest], patch: bytes, text: str) -> None:
    (verdict,) = verify_static(source, patch, written[1]).verdicts
    assert isinstance(verdict, Rejected) and verdict.check == "form" and text in verdict.detail


def test_identity(source: Source, written: tuple[bytes, Manifest]) -> None:
    patch, manifest = written
    other = replace(manifest, patch_sha256="0" * 64, origin=Origin("pypi", "0" * 64))
    assert set(rejected(verify_static(source, patch, other))) == {"identity"}


def test_another_tree(source: Source, written: tuple[bytes, Manifest], tmp_path: Path) -> None:
    """Lines moved by one: git itself would apply the patch, in the wrong places and without a word."""
    moved = {**shaped_files(), LLAMA: b"# one line more\n" + shaped_files()[LLAMA]}
    other = open_source(str(make_checkout(tmp_path / "moved", moved)), CacheLayout(tmp_path / "cache"))
    found = rejected(verify_static(other, *written))
    assert {"identity", "digests before", "regenerates", "digests after"} <= set(found)
    assert "llama.py" in found["digests before"]


def test_a_tree_without_the_file(source: Source, written: tuple[bytes, Manifest], tmp_path: Path) -> None:
    files = {path: data for path, data in shaped_files().items() if path != LLAMA}
    other = open_source(str(make_checkout(tmp_path / "less", files)), CacheLayout(tmp_path / "cache"))
    found = rejected(verify_static(other, *written))
    assert {"digests before", "applies"} <= set(found)


STAGE = b"+        if _auxtap is not None:\n+            _auxtap.stage(self, aux_hidden_states, forward_batch)\n"
ARM = b"+        if _auxtap is not None:\n+            _auxtap.arm(self)\n"
OFF = b"+import os\n+\n+tap = None\n"
GATE_LINE = b"+from sglang.srt.auxtap.gate import tap as _auxtap  # hidden-state tap; None when off\n"

CHANGES: dict[str, tuple[bytes, bytes, str, str]] = {
    "an unbound name": (STAGE, STAGE.replace(b"aux_hidden", b"no_hidden"), "names bound", "no_hidden_states"),
    "a statement without the test": (
        ARM,
        2 * b"+        _auxtap.arm(self)\n",
        "inert statements",
        "not a guarded call",
    ),
    "a second statement": (
        ARM,
        b"+        if _auxtap is not None: _auxtap.arm(self)\n+        self.armed = True\n",
        "inert statements",
        "not a guarded call",
    ),
    "another test": (ARM, ARM.replace(b"is not None", b"is None"), "inert statements", "not a guarded call"),
    "a call as an argument": (ARM, ARM.replace(b"(self)", b"(self.a())"), "inert statements", "not a guarded call"),
    "a function that the tap lacks": (ARM, ARM.replace(b".arm", b".fire"), "inert statements", "not a guarded call"),
    "too few arguments": (ARM, ARM.replace(b"(self)", b"()"), "inert statements", "gives arm 0 arguments"),
    "another import": (GATE_LINE, b"+from sglang.srt.auxtap import engine as _auxtap\n", "inert statements", "guarded"),
    "a gate that is on": (b"+tap = None\n", b"+tap = 1\n", "gate alone", "the tap is on"),
    "a gate that imports": (
        b"+import os\n+\n+tap = None",
        b"+import os, decimal\n+\n+tap = None",
        "gate alone",
        "also imports",
    ),
    "a gate of another variable": (b'"AUXTAP_SPOOL"', b'"PATH"', "gate alone", "gate.py"),
    "a line that does not parse": (ARM, ARM.replace(b" None:", b""), "parses", "model_runner.py does not parse"),
    "return outside of a function": (b"+tap = None\n", b"+return 1\n", "compiles", "gate.py"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_patch(name: str, source: Source, written: tuple[bytes, Manifest]) -> None:
    old, new, check, text = CHANGES[name]
    assert old in written[0]
    patch = written[0].replace(old, new, 1)
    found = rejected(verify_static(source, patch, repaired(source, patch, written[1])))
    assert text in found.pop(check), name
    assert "regenerates" in found and not {"identity", "applies", "digests after", "insertion only"} & set(found)


def test_a_file_that_may_be_run_keeps_its_mode(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "sgl", shaped_files())
    (checkout / LLAMA).chmod(0o755)
    git = ["git", "-C", str(checkout), "-c", "user.name=a test", "-c", "user.email=test@example.org"]
    subprocess.run([*git, "commit", "--quiet", "-am", "Let it be run"], check=True)
    source = open_source(str(checkout), CacheLayout(tmp_path / "cache"))
    assert prove_patch(source, DEFAULT_MODELS, (3,)).proof.holds


def test_a_name_that_is_bound_on_one_way_only(tmp_path: Path) -> None:
    """The accumulator is made under a condition: the statement before the stage exit might read nothing."""
    only_sometimes = shaped_files()[LLAMA].replace(
        b"        aux_hidden_states = []\n", b"        if positions:\n            aux_hidden_states = []\n"
    )
    checkout = make_checkout(tmp_path / "sgl", {**shaped_files(), LLAMA: only_sometimes})
    source = open_source(str(checkout), CacheLayout(tmp_path / "cache"))
    with pytest.raises(PatchError, match="it fills 0 collectors that it makes before its loop"):
        prove_patch(source, DEFAULT_MODELS, (3,))


def test_more_than_the_agreed_size(source: Source, written: tuple[bytes, Manifest]) -> None:
    extra = b"diff --git a/python/sglang/__init__.py b/python/sglang/__init__.py\nindex 1..2 100644\n"
    extra += b"--- a/python/sglang/__init__.py\n+++ b/python/sglang/__init__.py\n@@ -0,0 +1 @@\n+x = 1\n"
    found = rejected(verify_static(source, extra + written[0], written[1]))
    assert found["size"] == "python/sglang/__init__.py gets 1 lines"
    assert "python/sglang/__init__.py" in found["digests before"]
    assert "which the manifest does not list" in found["digests after"]
    assert "guarded" in found["inert statements"]


def test_a_new_file_elsewhere(source: Source, written: tuple[bytes, Manifest]) -> None:
    extra = b"diff --git a/setup.py b/setup.py\nnew file mode 100644\nindex 0..1\n"
    extra += b"--- /dev/null\n+++ b/setup.py\n@@ -0,0 +1 @@\n+x = 1\n"
    found = rejected(verify_static(source, written[0] + extra, written[1]))
    assert "setup.py is no file of the tap" in found["insertion only"]


def test_a_patch_without_new_files_would_apply_twice(source: Source, written: tuple[bytes, Manifest]) -> None:
    """Zero-context insertions carry nothing that git could recognise; the new files are what refuses a second time."""
    patch = written[0][: written[0].index(b"diff --git a/python/sglang/srt/auxtap/")]
    found = rejected(verify_static(source, patch, written[1]))
    assert "a second time" in found["refused twice"] and "no gate" in found["gate alone"]


def test_a_lying_manifest(source: Source, written: tuple[bytes, Manifest]) -> None:
    patch, manifest = written
    wrong = FileDigests(manifest.files[RUNNER].before, "0" * 64)
    found = rejected(verify_static(source, patch, replace(manifest, files={**manifest.files, RUNNER: wrong})))
    assert set(found) == {"digests after"} and "model_runner.py" in found["digests after"]
    found = rejected(verify_static(source, patch, replace(manifest, new_files={**manifest.new_files, GATE: "0" * 64})))
    assert set(found) == {"digests after"}


def test_a_package_in_the_cache(tmp_path: Path, shaped_package: Callable[[Path], Path]) -> None:
    source = open_source(str(shaped_package(tmp_path / "installed")), CacheLayout(tmp_path / "cache"))
    assert prove_patch(source, DEFAULT_MODELS, (3,)).proof.holds


@pytest.fixture
def shaped_package() -> Callable[[Path], Path]:
    def make(root: Path) -> Path:
        for path, data in shaped_files().items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
        return root

    return make


GENERATED = Path(__file__).resolve().parent.parent.parent / "generated/sglang-0.5.9"


@pytest.mark.network
def test_the_committed_patch_is_what_the_tool_writes(shared_cache: CacheLayout) -> None:
    source = open_source("pypi:0.5.9", shared_cache)
    proved = prove_patch(source, DEFAULT_MODELS, (3, 31, 59))
    assert proved.proof.holds
    assert proved.patch_set.inserted == (GENERATED / "inserted.patch").read_bytes()
    assert proved.manifest == (GENERATED / "manifest.json").read_bytes()
    assert (len(proved.patch_set.changes), proved.patch_set.n_inserted) == (5, 17)


@pytest.mark.slow
@pytest.mark.network
def test_what_a_user_gets_is_proved_from_its_files(shared_cache: CacheLayout) -> None:
    source = open_source("pypi:0.5.9", shared_cache)
    written = read_published(patch_files(GENERATED))
    assert verify_static(source, written.patch, written.manifest).passed == CHECKS


def test_the_manifest_names_the_tool(source: Source) -> None:
    made = write_patch(source.tree, plan_capture(source.tree, DEFAULT_MODELS, (3,)))
    data = manifest_bytes(made, Origin("checkout", source.digest), __version__, ())
    assert f'"auxtap {__version__}"'.encode() in data
