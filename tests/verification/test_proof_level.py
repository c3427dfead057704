"""A numeric proof counts for the bytes that were served and for nothing else."""

from pathlib import Path

import pytest

from auxtap.verification.proof import proof_level as module
from auxtap.verification.proof.proof_level import EngineProof, ProvedCase, keep_proof, proof_level, read_proofs

CASE = ProvedCase("llama", "default", 4, 100, 1e-6)
PROOF = EngineProof("patch", "tree", (CASE,), ("kimi_k25: the release has no such model",))


@pytest.fixture
def committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    keep_proof(tmp_path, "0.5.9", PROOF)
    monkeypatch.setattr(module, "files", lambda package: tmp_path)
    return tmp_path


def test_the_served_patch_is_engine_proved(committed: Path) -> None:
    level = proof_level("0.5.9", "patch", "tree")
    assert (level.level, level.cases, level.why) == ("engine-proved", (CASE,), PROOF.not_run[0])
    assert level.to_json()["cases"] == [
        {"model": "llama", "setting": "default", "states": 4, "rows": 100, "max_rel": 1e-6}
    ]


@pytest.mark.parametrize(
    ("release", "patch", "tree", "why"),
    [
        ("0.5.9", "other", "tree", "values were compared for another patch of this release"),
        ("0.5.9", "patch", "other", "values were compared for another tree of this release"),
        ("0.5.8", "patch", "tree", "its servers were not run yet"),
        ("0.4.6", "patch", "tree", "no engine environment is known for it"),
    ],
)
def test_anything_else_is_static_only(committed: Path, release: str, patch: str, tree: str, why: str) -> None:
    level = proof_level(release, patch, tree)
    assert (level.level, level.cases, level.why) == ("static only", (), why)


def test_results_are_kept_in_the_order_of_releases(committed: Path) -> None:
    path = keep_proof(committed, "0.5.10.post1", PROOF)
    first = path.read_bytes()
    keep_proof(committed, "0.5.8", PROOF)
    assert list(read_proofs(committed)) == ["0.5.8", "0.5.9", "0.5.10.post1"]
    assert keep_proof(committed, "0.5.8", PROOF).read_bytes() != first
    assert read_proofs(committed / "nowhere") == {}
