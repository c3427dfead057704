"""How far a patch is proved: with servers whose values were compared, or statically only, and why."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from auxtap.core.files import publish_json
from auxtap.core.release import release_key
from auxtap.serving.engine_lock import LOCK_OF_RELEASE
from auxtap.verification.proof.proof_key import code_digest

PROOFS_NAME = "engine_proofs.json"
Level = Literal["engine-proved", "static only"]


@dataclass(frozen=True)
class ProvedCase:
    """One server whose states were compared: the largest relative error of any state, and how many rows.

    `modules` are the files below models/, without suffix, that hold the model's class and its decoder loop.
    """

    model: str
    modules: tuple[str, ...]
    setting: str
    states: int
    rows: int
    max_rel: float


@dataclass(frozen=True)
class ProofLevel:
    """What the values of a patched server say of this very patch.

    `why` says what is missing for `engine-proved`, or of a case that could not be run.
    """

    level: Level
    cases: tuple[ProvedCase, ...]
    why: str

    def to_json(self) -> dict[str, Any]:
        """Return it as the manifest holds it."""
        return {"level": self.level, "cases": [asdict(case) for case in self.cases], "why": self.why}


@dataclass(frozen=True)
class EngineProof:
    """A committed result: the code and the source that were served, what was equal, and what could not be run.

    `code_sha256` is the digest of what of the patch runs, for the models of `cases`.
    """

    code_sha256: str
    source_digest: str
    cases: tuple[ProvedCase, ...]
    not_run: tuple[str, ...]


def proved_code(patch: bytes, cases: Sequence[ProvedCase]) -> str:
    """Return the digest of what of a patch runs for the models of some cases: a result is kept for it."""
    return code_digest(patch, {module for case in cases for module in case.modules})


def proof_level(release: str, patch: bytes, source_digest: str) -> ProofLevel:
    """Return the level of a patch; a result counts only for the code and the tree that were served."""
    proof = read_proofs().get(release)
    if proof is None:
        why = "its servers were not run yet" if release in LOCK_OF_RELEASE else "no engine environment is known for it"
        return ProofLevel("static only", (), why)
    if proof.source_digest != source_digest:
        return ProofLevel("static only", (), "values were compared for another tree of this release")
    if proof.code_sha256 != proved_code(patch, proof.cases):
        return ProofLevel("static only", (), "values were compared for other code of the patch")
    return ProofLevel("engine-proved", proof.cases, "; ".join(proof.not_run))


def read_proofs(folder: Path | None = None) -> Mapping[str, EngineProof]:
    """Return the committed results by release; none where there is no file."""
    place = files("auxtap.generated").joinpath(PROOFS_NAME) if folder is None else folder / PROOFS_NAME
    if not place.is_file():
        return {}
    return {release: _from_json(record) for release, record in json.loads(place.read_bytes()).items()}


def _from_json(record: Any) -> EngineProof:
    return EngineProof(
        code_sha256=record["code_sha256"],
        source_digest=record["source_digest"],
        cases=tuple(ProvedCase(**{**case, "modules": tuple(case["modules"])}) for case in record["cases"]),
        not_run=tuple(record["not_run"]),
    )


def keep_proof(folder: Path, release: str, proof: EngineProof) -> Path:
    """Put a result among the committed ones of `folder` and return the file."""
    proofs = {**read_proofs(folder), release: proof}
    path = folder / PROOFS_NAME
    publish_json(path, {name: asdict(proofs[name]) for name in _in_order(list(proofs))})
    return path


def _in_order(releases: Sequence[str]) -> list[str]:
    return sorted(releases, key=release_key)
