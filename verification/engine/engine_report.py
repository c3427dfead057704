"""What the numeric proof found, state by state, and when a state counts as right."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from auxtap.verification.engine.engine_cases import EngineCase, NotRun
from auxtap.verification.engine.known_differences import known_difference
from auxtap.verification.engine.reference import Comparison

# Largest relative error (Frobenius, float32) of a state that counts as equal.
TOLERANCE = 5e-6
EQUAL, KNOWN, DIFFERS, INCOMPLETE = "equal", "known difference", "differs", "incomplete"
RIGHT = (EQUAL, KNOWN)


@dataclass(frozen=True)
class CellResult:
    """One state of one case against the reference.

    `max_rel` is the largest relative error (Frobenius) of a sample, None where there is no number; `verdict` is
    equal, known difference (the committed list has its cause), differs, or incomplete when a row is missing. `note`
    is that cause, or what the rows are instead of the state.
    """

    model: str
    release: str
    setting: str
    state: str
    max_abs: float | None
    max_rel: float | None
    rows: int
    verdict: str
    note: str = ""


@dataclass(frozen=True)
class CaseResult:
    """One case as a whole; `problem` says why it has no cells, `stand_ins` which kernels were ours."""

    case: EngineCase
    samples: int
    tokens: int
    ready_s: float
    cells: tuple[CellResult, ...]
    problem: str | None = None
    stand_ins: str = ""

    @property
    def holds(self) -> bool:
        """Whether every state was there and right."""
        return self.problem is None and all(cell.verdict in RIGHT for cell in self.cells)


@dataclass(frozen=True)
class EngineReport:
    """The whole proof."""

    release: str
    patch_digest: str
    tolerance: float
    cases: tuple[CaseResult, ...]
    not_run: tuple[NotRun, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether every case that was run was proved."""
        return bool(self.cases) and all(case.holds for case in self.cases)

    @property
    def cells(self) -> tuple[CellResult, ...]:
        """Every state of every case."""
        return tuple(cell for case in self.cases for cell in case.cells)


def judge(
    case: EngineCase, release: str, comparison: Comparison, states: Sequence[str], n_tokens: int
) -> tuple[CellResult, ...]:
    """Return a verdict for every state that must be there: each row compared, and equal within `TOLERANCE`."""
    found = {state.state: state for state in comparison.states}
    cells = []
    for name in states:
        state = found.get(name)
        rows = state.rows if state is not None else 0
        max_abs = state.max_abs if state is not None and math.isfinite(state.max_abs) else None
        max_rel = state.max_rel if state is not None and math.isfinite(state.max_rel) else None
        verdict = EQUAL if max_rel is not None and max_rel <= TOLERANCE else DIFFERS
        note = "" if state is None or verdict == EQUAL else state.diagnosis
        if rows != n_tokens:
            verdict = INCOMPLETE
        elif verdict == DIFFERS and max_rel is not None:
            known = known_difference(release, case.model, case.setting, name)
            if known is not None and max_rel <= known.max_rel:
                verdict, note = KNOWN, known.cause
        cells.append(CellResult(case.model, release, case.setting, name, max_abs, max_rel, rows, verdict, note))
    return tuple(cells)
