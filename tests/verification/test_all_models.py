"""`--model all`: the patch of every model file holds, and no stage exit drops captured states unnoticed."""

from pathlib import PurePosixPath

import pytest

from auxtap.checkout.source import Source, open_source
from auxtap.core.cache import CacheLayout
from auxtap.core.release import release_key
from auxtap.tracer.report.readings import ModelReadings
from auxtap.tracer.source.trace_cache import TraceCache
from auxtap.tracer.tracing import trace_tree
from auxtap.verification.proof.proved import prove_patch
from auxtap.verification.releases.sweep import chosen_releases

pytestmark = [pytest.mark.network, pytest.mark.slow]

FEW_RELEASES = ("0.5.9",)
LAYERS = (3, 31, 59)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "release" in metafunc.fixturenames:
        everything = metafunc.config.getoption("--all-releases")
        metafunc.parametrize("release", chosen_releases(None) if everything else FEW_RELEASES)


def dropping_scopes(source: Source, cache: CacheLayout) -> set[tuple[PurePosixPath, str]]:
    """Return the functions in which the tracer sees a stage exit drop states."""
    report = trace_tree(source.tree, everything=True, cache=TraceCache(cache.root / "traces"))
    return {
        (trace.file, branch.scope)
        for trace in report.files
        for branch in trace.stage_branches
        if branch.role == "stage_exit" and branch.drops_aux
    }


def refused_scopes(read: ModelReadings, scopes: set[tuple[PurePosixPath, str]]) -> set[tuple[PurePosixPath, str]]:
    """Return those of the scopes whose class the patch's table refuses by name."""
    return {(path, scope) for path, scope in scopes if (path, scope.partition(".")[0]) in read.objections}


def test_the_patch_for_every_model_holds(release: str, shared_cache: CacheLayout) -> None:
    source = open_source(f"pypi:{release}", shared_cache)
    proved = prove_patch(source, ("all",), LAYERS)
    assert proved.proof.holds, proved.proof.rejected
    staged = {(each.path, each.scope) for each in proved.patch_set.plan.insertions if each.kind == "stage"}
    dropping = dropping_scopes(source, shared_cache)
    left = dropping - staged
    assert left == refused_scopes(proved.patch_set.plan.models_read, left)
    # Up to 0.4.6.post1 no model has both: pipeline stages, and states that it captures.
    if dropping or release_key(release) > release_key("0.4.6.post1"):
        assert len(dropping & staged) > len(dropping) / 2
