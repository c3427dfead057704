"""A numeric proof counts for the code that was served and for nothing else."""

from pathlib import Path

import pytest

from auxtap.checkout.publication import patch_files, read_published
from auxtap.core.patch_parts import put_together
from auxtap.core.patch_text import read_patch
from auxtap.rewriters.patch.plan import TAP_ROOT
from auxtap.verification.proof import proof_level as module
from auxtap.verification.proof.proof_level import (
    EngineProof,
    ProvedCase,
    keep_proof,
    proof_level,
    proved_code,
    read_proofs,
)

GENERATED = Path(__file__).resolve().parent.parent.parent / "generated"

CASE = ProvedCase("llama", ("llama",), "default", 4, 100, 1e-6)
INSERTED = b"""\
diff --git a/python/sglang/srt/models/llama.py b/python/sglang/srt/models/llama.py
index 0..1 100644
--- a/python/sglang/srt/models/llama.py
+++ b/python/sglang/srt/models/llama.py
@@ -4,0 +5 @@
+from sglang.srt.auxtap.gate import tap as _auxtap  # on or off
@@ -8,0 +10,2 @@
+        if _auxtap is not None:
+            _auxtap.stage(self, states, batch)
"""
ENGINE = b'''"""The functions."""

# What is taken.
TAKEN = ("llama",)


def stage(backbone, states, batch):
    """Take the states."""
    return states  # all of them
'''
TABLE = b'''"""Which."""

CAPTURES = {
    "llama.LlamaModel": True,
    "qwen2.Qwen2Model": False,
}
REFUSED = {
    "gemma3.Gemma3Model": "the blocks keep the residual",
}
NORMS = {
    "llama.LlamaModel": "norm",
}
'''


def patch(inserted: bytes = INSERTED, engine: bytes = ENGINE, table: bytes = TABLE) -> bytes:
    return put_together(inserted, [(TAP_ROOT / "backbones.py", table), (TAP_ROOT / "engine.py", engine)])


PROOF = EngineProof(proved_code(patch(), (CASE,)), "tree", (CASE,), ("kimi_k25: the release has no such model",))


@pytest.fixture
def committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    keep_proof(tmp_path, "0.5.9", PROOF)
    monkeypatch.setattr(module, "files", lambda package: tmp_path)
    return tmp_path


def test_the_served_patch_is_engine_proved(committed: Path) -> None:
    level = proof_level("0.5.9", patch(), "tree")
    assert (level.level, level.cases, level.why) == ("engine-proved", (CASE,), PROOF.not_run[0])
    assert level.to_json()["cases"] == [
        {"model": "llama", "modules": ("llama",), "setting": "default", "states": 4, "rows": 100, "max_rel": 1e-6}
    ]


NO_CODE = {
    "a mended comment": patch(engine=ENGINE.replace(b"# What is taken.", b"# What is taken, by name.\n# Two lines.")),
    "a mended docstring": patch(engine=ENGINE.replace(b"Take the states.", b"Take the states of a batch.")),
    "the gate's comment": patch(INSERTED.replace(b"# on or off", b"# the tap")),
    "another layout": patch(
        INSERTED.replace(b"@@ -8,0 +10,2 @@", b"@@ -8,0 +10 @@").replace(b"None:\n+           ", b"None:")
    ),
    "another class's refusal": patch(table=TABLE.replace(b"Gemma3Model", b"Gemma3Other")),
    "a refusal's wording": patch(table=TABLE.replace(b"keep the residual", b"keep it")),
    "another class is captured": patch(table=TABLE.replace(b'"qwen2.Qwen2Model": False', b'"qwen3.Qwen3Model": True')),
}
CODE = {
    "a changed statement": patch(engine=ENGINE.replace(b"return states", b"return states[1:]")),
    "a changed constant": patch(engine=ENGINE.replace(b'("llama",)', b'("qwen2",)')),
    "another argument": patch(INSERTED.replace(b"states, batch)", b"batch, states)")),
    "another place": patch(INSERTED.replace(b"@@ -8,0 +10,2 @@", b"@@ -9,0 +11,2 @@")),
    "how a proved class is captured": patch(table=TABLE.replace(b'LlamaModel": True', b'LlamaModel": False')),
    "a proved class is captured no more": patch(table=TABLE.replace(b'    "llama.LlamaModel": True,\n', b"")),
    "a proved class's norm": patch(table=TABLE.replace(b'"norm"', b'"last_norm"')),
}


@pytest.mark.parametrize("name", NO_CODE)
def test_what_does_not_run_voids_nothing(committed: Path, name: str) -> None:
    assert NO_CODE[name] != patch()
    assert proof_level("0.5.9", NO_CODE[name], "tree").level == "engine-proved"


@pytest.mark.parametrize("name", CODE)
def test_what_runs_voids_the_proof(committed: Path, name: str) -> None:
    level = proof_level("0.5.9", CODE[name], "tree")
    assert (level.level, level.cases, level.why) == (
        "static only",
        (),
        "values were compared for other code of the patch",
    )


@pytest.mark.parametrize(
    ("release", "tree", "why"),
    [
        ("0.5.9", "other", "values were compared for another tree of this release"),
        ("0.5.8", "tree", "its servers were not run yet"),
        ("0.4.6", "tree", "no engine environment is known for it"),
    ],
)
def test_anything_else_is_static_only(committed: Path, release: str, tree: str, why: str) -> None:
    level = proof_level(release, patch(), tree)
    assert (level.level, level.cases, level.why) == ("static only", (), why)


@pytest.mark.parametrize("release", sorted(read_proofs()))
def test_a_mended_comment_in_the_tap_keeps_a_kept_proof(release: str) -> None:
    """On the committed patches themselves: every file of the tap gets a comment, then one of them a statement."""
    written, cases = read_published(patch_files(GENERATED / f"sglang-{release}")), read_proofs()[release].cases
    files = read_patch(written.patch)
    inserted = written.files.patch.read_bytes()
    tap = {file.path: b"".join(line.data for line in file.inserted) for file in files if file.is_new}
    before = proved_code(written.patch, cases)
    mended = {path: data + b"\n# Mended.\n" for path, data in tap.items()}
    assert proved_code(put_together(inserted, sorted(mended.items())), cases) == before
    for path in tap:
        changed = {**tap, path: tap[path] + b"\nCHANGED = True\n"}
        assert proved_code(put_together(inserted, sorted(changed.items())), cases) != before


def test_results_are_kept_in_the_order_of_releases(committed: Path) -> None:
    path = keep_proof(committed, "0.5.10.post1", PROOF)
    first = path.read_bytes()
    keep_proof(committed, "0.5.8", PROOF)
    assert list(read_proofs(committed)) == ["0.5.8", "0.5.9", "0.5.10.post1"]
    assert keep_proof(committed, "0.5.8", PROOF).read_bytes() != first
    assert read_proofs(committed / "nowhere") == {}
