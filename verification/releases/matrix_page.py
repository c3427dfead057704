"""The committed result of the numeric proof: a record for each release, and one page made of all records."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from auxtap.core.files import publish_bytes, publish_json
from auxtap.core.release import release_key
from auxtap.verification.engine.engine_cases import EngineCase, NotRun
from auxtap.verification.engine.engine_report import KNOWN, CaseResult, CellResult, EngineReport
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


def keep_matrix(folder: Path, report: EngineReport, patched_models: Sequence[str], day: str) -> Path:
    """Put a report among the records below `folder`, write the page anew and return it; `day` is the run's date.

    What an earlier run of the same patch gave stays where this one says nothing of a case.
    """
    records = folder / RECORDS
    records.mkdir(parents=True, exist_ok=True)
    record = {
        "release": report.release,
        "day": day,
        "patch": f"auxtap patch pypi:{report.release} --model {','.join(patched_models)}",
        "patch_sha256": report.patch_digest,
        "tolerance": report.tolerance,
        "cases": [{**asdict(case), "problem": _without_log(case.problem)} for case in report.cases],
        "not_run": [asdict(case) for case in report.not_run],
    }
    _add_earlier(record, records / f"{report.release}.json")
    publish_json(records / f"{report.release}.json", record)
    page = folder / PAGE
    publish_bytes(page, matrix_page([json.loads(path.read_bytes()) for path in records.glob("*.json")]).encode())
    return page


def _without_log(problem: str | None) -> str | None:
    """Leave out where the log lies: that is one machine's."""
    return None if problem is None else _LOG.sub("", problem)


def _add_earlier(record: dict[str, Any], path: Path) -> None:
    earlier = json.loads(path.read_bytes()) if path.is_file() else None
    if earlier is None or any(earlier[key] != record[key] for key in ("patch", "patch_sha256", "tolerance")):
        return
    told = {_place(entry) for key in ("cases", "not_run") for entry in record[key]}
    for key in ("cases", "not_run"):
        record[key] = sorted(
            [*record[key], *(entry for entry in earlier[key] if _place(entry) not in told)], key=_place
        )


def _place(entry: Mapping[str, Any]) -> tuple[int, int]:
    case = entry["case"]
    return TINY_MODELS.index(case["model"]), list(SETTINGS).index(case["setting"])


def matrix_page(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of these records, releases ascending; the same records always give the same text."""
    tolerance = max((record["tolerance"] for record in records), default=0.0)
    lines = [_HEAD.format(tolerance=tolerance).rstrip("\n"), ""]
    lines += [f"- `{setting.name}`: {setting.tale}" for setting in SETTINGS.values()]
    for record in sorted(records, key=lambda record: release_key(record["release"])):
        lines += _release_lines(record)
    return "\n".join(lines) + "\n"


def _release_lines(record: Mapping[str, Any]) -> list[str]:
    cases = {result.case: result for result in map(_read_case, record["cases"])}
    left_out = [NotRun(EngineCase(**entry["case"]), entry["reason"]) for entry in record["not_run"]]
    held = sum(result.holds for result in cases.values())
    models = [name for name in TINY_MODELS if any(case.model == name for case in cases)]
    lines = [
        "",
        f"## SGLang {record['release']}",
        "",
        f"{held} of {len(cases)} servers right, run on {record['day']}; patch: `{record['patch']}`, "
        f"sha256 {record['patch_sha256'][:16]}.",
        "",
        _row(["setting", *models]),
        _row(["---", *["---:"] * len(models)]),
    ]
    for setting in SETTINGS:
        row = [cases.get(EngineCase(model, setting)) for model in models]
        if any(row):
            lines.append(_row([setting, *map(_cell, row)]))
    return [*lines, *_notes(cases.values(), left_out)]


def _read_case(value: Mapping[str, Any]) -> CaseResult:
    cells = tuple(CellResult(**cell) for cell in value["cells"])
    return CaseResult(**{**value, "case": EngineCase(**value["case"]), "cells": cells})


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(result: CaseResult | None) -> str:
    if result is None:
        return "-"
    errors = [cell.max_rel for cell in result.cells if cell.max_rel is not None]
    worst = f"{max(errors):.1e}" if errors else "no numbers"
    if not result.holds:
        return f"**FAILED** {worst}"
    marks = ["s"] if result.stand_ins else []
    marks += ["k"] if any(cell.verdict == KNOWN for cell in result.cells) else []
    return " ".join([worst, *(f"*{mark}*" for mark in marks)])


def _notes(results: Any, left_out: Sequence[NotRun]) -> list[str]:
    problems = [f"- {result.case} failed: {result.problem}" for result in results if result.problem is not None]
    noted = [(result, cell) for result in results for cell in result.cells if cell.note]
    problems += [
        f"- {result.case} {cell.verdict}: {cell.state}: {cell.note}" for result, cell in noted if cell.verdict != KNOWN
    ]
    known = {f"{result.case.model}: {cell.note}" for result, cell in noted if cell.verdict == KNOWN}
    reasons: dict[tuple[str, str], list[str]] = {}
    for entry in left_out:
        reasons.setdefault((entry.case.model, entry.reason), []).append(entry.case.setting)
    models: dict[tuple[str, str], list[str]] = {}
    for (model, reason), names in reasons.items():
        models.setdefault((", ".join(names), reason), []).append(model)
    not_run = [f"- {', '.join(of)}, {names}: not run: {reason}" for (names, reason), of in models.items()]
    notes = [*problems, *(f"- known difference, {note}" for note in sorted(known)), *not_run]
    return ["", *notes] if notes else []
