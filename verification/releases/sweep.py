"""Write and prove the patch of one release after the other."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from auxtap.checkout.publication import publish_parts
from auxtap.checkout.releases import PYPI_PREFIX, locked_wheels
from auxtap.checkout.source import open_source
from auxtap.core.cache import CacheLayout
from auxtap.core.errors import PatchError, UsageError
from auxtap.core.release import release_key
from auxtap.tracer.reading.trees import Readings
from auxtap.verification.proof.proof_level import ProofLevel
from auxtap.verification.proof.proved import ProvedPatch, prove_patch

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Place:
    """Where one statement of a patch went."""

    kind: str
    file: str
    scope: str
    line: int


@dataclass(frozen=True)
class ReleaseResult:
    """What became of one release; `problem` says why there is no patch."""

    release: str
    seconds: float
    n_files: int = 0
    n_lines: int = 0
    places: tuple[Place, ...] = ()
    hazards: tuple[str, ...] = ()
    server_flags: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()
    level: ProofLevel | None = None
    problem: str | None = None

    @property
    def holds(self) -> bool:
        """Whether there is a patch and every check of it holds."""
        return self.problem is None and not self.rejected


def chosen_releases(text: str | None) -> tuple[str, ...]:
    """Return the releases that FROM..TO, one release, or a list with commas names; all of them without a text.

    Raises:
        UsageError: a release is not in the lock table, or the range is empty.
    """
    known = [wheel.release for wheel in locked_wheels()]
    if text is None or text == "all":
        return tuple(known)
    first, dots, last = text.partition("..")
    names = [name for name in ((first, last) if dots else text.split(",")) if name]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise UsageError(
            f"no release {', '.join(unknown) or 'named'}", hint=f"releases run from {known[0]} to {known[-1]}"
        )
    if not dots:
        return tuple(sorted(set(names), key=release_key))
    begin, end = release_key(first or known[0]), release_key(last or known[-1])
    chosen = tuple(release for release in known if begin <= release_key(release) <= end)
    if not chosen:
        raise UsageError(f"no release lies in {text}", hint="the older one comes first")
    return chosen


def sweep_releases(
    releases: Sequence[str],
    models: Sequence[str],
    layers: Sequence[int],
    cache: CacheLayout,
    out: Path | None,
    progress: Progress,
) -> Iterator[ReleaseResult]:
    """Yield the result of each release, oldest first; a patch whose checks hold is published below `out`.

    Raises:
        SourceError: a wheel cannot be had.
    """
    readings = Readings(cache.readings)
    for release in releases:
        began = time.monotonic()
        source = open_source(f"{PYPI_PREFIX}{release}", cache, progress)
        try:
            proved = prove_patch(source, models, layers, readings)
        except PatchError as error:
            yield ReleaseResult(release, time.monotonic() - began, problem=error.message)
            continue
        if out is not None and proved.proof.holds:
            publish_parts(out, proved.patch_set, proved.manifest)
        yield _result(proved, time.monotonic() - began)
        # Syntax trees refer to themselves; one release's are gone before the next one's are made.
        del proved, source
        gc.collect()


def _result(proved: ProvedPatch, seconds: float) -> ReleaseResult:
    plan = proved.patch_set.plan
    statements = [insertion for insertion in plan.insertions if insertion.kind != "gate"]
    return ReleaseResult(
        release=plan.release,
        seconds=seconds,
        n_files=len(proved.patch_set.changes),
        n_lines=proved.patch_set.n_inserted,
        places=tuple(Place(each.kind, each.path.name, each.scope, each.line) for each in statements),
        hazards=tuple(f"{decision.hazard}: {decision.verdict}" for decision in plan.decisions),
        server_flags=plan.server_flags,
        passed=proved.proof.passed,
        rejected=tuple(f"{verdict.check}: {verdict.detail}" for verdict in proved.proof.rejected),
        level=proved.level,
    )
