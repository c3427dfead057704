"""The committed result of the numeric proof: a line for each server, and one page made of all lines."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from auxtap.core.files import publish_bytes
from auxtap.core.release import release_key
from auxtap.verification.engine.engine_report import KNOWN, CaseResult, EngineReport
from auxtap.verification.engine.engine_settings import SETTINGS
from auxtap.verification.engine.tiny_models import TINY_MODELS

_LOG = re.compile(r" \(log: [^)]*\)")
PAGE, RECORDS = "engine-matrix.md", "engine-matrix"
_HEAD = """# Patched servers against transformers

Written by `auxtap verify pypi:VERSION --engine --matrix --model all --table docs` (`make matrix` runs it for every
release with an engine environment). Each cell is one real SGLang server on a CPU, started on the patched tree, filled
over HTTP and read through tap, spool and store; the number is the largest relative error (Frobenius norm, float32) of
any sample in any state, three hidden states and the final one, against transformers on the same weights. At most
{tolerance:.0e} counts as equal.

- *s*: stand-in kernels. SGLang has GPU kernels only for the attention and the experts of this model; ours took their
  place, so the cell proves the rest of SGLang's code.
- *k*: a known difference; its cause stands below the table.
- **FAILED**: a state differs or is not whole.
- -: not run; the reason stands below the table.

## Settings

"""


@dataclass(frozen=True)
class MatrixRun:
    """What all servers of a release were run with; `day` is the last run's date."""

    release: str
    day: str
    patch: str
    patch_sha256: str
    tolerance: float


@dataclass(frozen=True)
class MatrixCase:
    """What became of one server, or why it was not run.

    `max_rel` is the largest relative error of any state, None where there is no number; `notes` are lines about it
    that stand below the table, `known` the causes of its known differences.
    """

    model: str
    setting: str
    holds: bool = False
    max_rel: float | None = None
    stand_ins: bool = False
    known: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    not_run: str = ""

    @property
    def place(self) -> tuple[int, int]:
        """Where it stands on the page."""
        return TINY_MODELS.index(self.model), list(SETTINGS).index(self.setting)


@dataclass(frozen=True)
class Matrix:
    """All servers of one release."""

    run: MatrixRun
    cases: tuple[MatrixCase, ...]


def keep_matrix(folder: Path, report: EngineReport, patched_models: Sequence[str], day: str) -> Path:
    """Put a report among the records below `folder`, write the page anew and return it; `day` is the run's date.

    What an earlier run of the same patch gave stays where this one says nothing of a case.
    """
    path = folder / RECORDS / f"{report.release}.jsonl"
    patch = f"auxtap patch pypi:{report.release} --model {','.join(patched_models)}"
    run = MatrixRun(report.release, day, patch, report.patch_digest, report.tolerance)
    cases = {case.place: case for case in _matrix_cases(report)}
    earlier = _read_matrix(path) if path.is_file() else None
    if earlier is not None and replace(earlier.run, day=day) == run:
        cases = {case.place: case for case in earlier.cases} | cases
    publish_bytes(path, _matrix_bytes(Matrix(run, tuple(cases[place] for place in sorted(cases)))))
    page = folder / PAGE
    publish_bytes(page, matrix_page([_read_matrix(each) for each in path.parent.glob("*.jsonl")]).encode())
    return page


def _matrix_cases(report: EngineReport) -> Iterable[MatrixCase]:
    for result in report.cases:
        errors = [cell.max_rel for cell in result.cells if cell.max_rel is not None]
        yield MatrixCase(
            result.case.model,
            result.case.setting,
            holds=result.holds,
            # Two digits: the rest is noise of the machine's arithmetic.
            max_rel=float(f"{max(errors):.1e}") if errors else None,
            stand_ins=bool(result.stand_ins),
            known=tuple(sorted({cell.note for cell in result.cells if cell.verdict == KNOWN and cell.note})),
            notes=tuple(_notes_of(result)),
        )
    for entry in report.not_run:
        yield MatrixCase(entry.case.model, entry.case.setting, not_run=entry.reason)


def _notes_of(result: CaseResult) -> Iterable[str]:
    if result.problem is not None:
        # Where the log lies is one machine's.
        yield f"{result.case} failed: {_LOG.sub('', result.problem)}"
    for cell in result.cells:
        if cell.note and cell.verdict != KNOWN:
            yield f"{result.case} {cell.verdict}: {cell.state}: {cell.note}"


def _matrix_bytes(matrix: Matrix) -> bytes:
    """Return a line for the run and one for each server, without what is as usual."""
    usual = asdict(MatrixCase("", ""))
    lines = [asdict(matrix.run)]
    lines += [{key: value for key, value in asdict(case).items() if value != usual[key]} for case in matrix.cases]
    return "".join(f"{json.dumps(line)}\n" for line in lines).encode()


def _read_matrix(path: Path) -> Matrix:
    first, *lines = map(json.loads, path.read_text().splitlines())
    return Matrix(MatrixRun(**first), tuple(map(_read_case, lines)))


def _read_case(line: Any) -> MatrixCase:
    lists = {key: tuple(line.get(key, ())) for key in ("known", "notes")}
    return MatrixCase(**{**line, **lists})


def matrix_page(matrices: Sequence[Matrix]) -> str:
    """Return the page of these releases, in their order; the same records always give the same text."""
    tolerance = max((matrix.run.tolerance for matrix in matrices), default=0.0)
    lines = [_HEAD.format(tolerance=tolerance).rstrip("\n"), ""]
    lines += [f"- `{setting.name}`: {setting.tale}" for setting in SETTINGS.values()]
    for matrix in sorted(matrices, key=lambda matrix: release_key(matrix.run.release)):
        lines += _release_lines(matrix)
    return "\n".join(lines) + "\n"


def _release_lines(matrix: Matrix) -> list[str]:
    run = {(case.model, case.setting): case for case in matrix.cases if not case.not_run}
    models = [name for name in TINY_MODELS if any(model == name for model, _ in run)]
    lines = [
        "",
        f"## SGLang {matrix.run.release}",
        "",
        f"{sum(case.holds for case in run.values())} of {len(run)} servers right, run on {matrix.run.day}; "
        f"patch: `{matrix.run.patch}`, sha256 {matrix.run.patch_sha256[:16]}.",
        "",
        _row(["setting", *models]),
        _row(["---", *["---:"] * len(models)]),
    ]
    for setting in SETTINGS:
        row = [run.get((model, setting)) for model in models]
        if any(row):
            lines.append(_row([setting, *map(_cell, row)]))
    return [*lines, *_notes(matrix.cases)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(case: MatrixCase | None) -> str:
    if case is None:
        return "-"
    worst = "no numbers" if case.max_rel is None else f"{case.max_rel:.1e}"
    if not case.holds:
        return f"**FAILED** {worst}"
    return " ".join([worst, *(["*s*"] if case.stand_ins else []), *(["*k*"] if case.known else [])])


def _notes(cases: Sequence[MatrixCase]) -> list[str]:
    known = {f"{case.model}: {cause}" for case in cases for cause in case.known}
    reasons: dict[tuple[str, str], list[str]] = {}
    for case in cases:
        if case.not_run:
            reasons.setdefault((case.model, case.not_run), []).append(case.setting)
    models: dict[tuple[str, str], list[str]] = {}
    for (model, reason), names in reasons.items():
        models.setdefault((", ".join(names), reason), []).append(model)
    not_run = [f"- {', '.join(of)}, {names}: not run: {reason}" for (names, reason), of in models.items()]
    problems = [f"- {note}" for case in cases for note in case.notes]
    notes = [*problems, *(f"- known difference, {note}" for note in sorted(known)), *not_run]
    return ["", *notes] if notes else []
