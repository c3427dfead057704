"""The compatibility table: what the sweep found, as a page that is committed beside the patches."""

from collections.abc import Sequence

from auxtap.verification.releases.sweep import Place, ReleaseResult

PAGE_NAME = "compatibility.md"
_HEAD = """# SGLang releases and their capture patches

Written by `auxtap sweep`; every patch was made from its release's own tree, with no human edit, and passed the static
checks counted here. *engine-proved* means that the states of patched servers of this very patch equal transformers'
(float32, at most 5e-6 relative); *static only* says why there is no such comparison. Each inserted statement is the
gate's import or one guarded call, on lines of its own.

"""
_COLUMNS = ("release", "files", "lines", "statements", "hazards", "server flags", "checks", "proof")


def compatibility_page(results: Sequence[ReleaseResult], models: Sequence[str]) -> str:
    """Return the page; the same results always give the same text."""
    holding = [result for result in results if result.holds]
    proved = [result for result in holding if result.level is not None and result.level.level == "engine-proved"]
    facts = (
        f"Models whose pipeline stages are tapped: {', '.join(models)}.\n"
        f"{len(holding)} of {len(results)} releases have a patch whose checks hold; {len(proved)} are engine-proved.\n"
    )
    table = [_row(_COLUMNS), _row(["---"] * len(_COLUMNS)), *(_row(_cells(result)) for result in results)]
    return _HEAD + facts + "\n" + "\n".join(table) + "\n" + _proofs(proved) + _places(results)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(result: ReleaseResult) -> list[str]:
    if result.problem is not None:
        return [result.release, "", "", f"refused: {result.problem}", "", "", "", "none"]
    n_checks = len(result.passed) + len(result.rejected)
    level = result.level
    proof = "" if level is None else level.level + (f": {level.why}" if level.why else "")
    return [
        result.release,
        str(result.n_files),
        str(result.n_lines),
        ", ".join(_statement(place) for place in result.places),
        str(len(result.hazards)),
        " ".join(f"`{flag}`" for flag in result.server_flags),
        f"{len(result.passed)} of {n_checks}",
        proof,
    ]


def _statement(place: Place) -> str:
    return f"stage ({place.file.removesuffix('.py')})" if place.kind == "stage" else place.kind


def _proofs(results: Sequence[ReleaseResult]) -> str:
    if not results:
        return ""
    lines = ["", "## Servers compared", "", _row(("release", "model", "setting", "states", "rows", "largest relative"))]
    lines.append(_row(["---"] * 6))
    for result in results:
        for case in result.level.cases if result.level is not None else ():
            cells = (result.release, case.model, case.setting, str(case.states), str(case.rows), f"{case.max_rel:.1e}")
            lines.append(_row(cells))
    return "\n".join(lines) + "\n"


def _places(results: Sequence[ReleaseResult]) -> str:
    """Return where each statement stands, told once for releases that follow each other with the same place."""
    lines = ["", "## Places", ""]
    kinds = dict.fromkeys((place.kind, place.file) for result in results for place in result.places)
    for kind, file in kinds:
        lines += [f"- **{kind}** in `{file}`: {'; '.join(_runs(results, kind, file))}"]
    return "\n".join(lines) + "\n"


def _runs(results: Sequence[ReleaseResult], kind: str, file: str) -> list[str]:
    runs: list[tuple[str, str, str]] = []
    for result in results:
        scopes = [place.scope for place in result.places if (place.kind, place.file) == (kind, file)]
        for scope in scopes:
            if runs and runs[-1][0] == scope:
                runs[-1] = (scope, runs[-1][1], result.release)
            else:
                runs.append((scope, result.release, result.release))
    return [f"`{scope}` {first if first == last else f'{first} to {last}'}" for scope, first, last in runs]
