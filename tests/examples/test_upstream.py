"""The proposal for SGLang: what the page shows is what is made, and it does nothing but insert guarded calls."""

import re
from pathlib import Path

import pytest

from auxtap.checkout.source import open_source
from auxtap.core.cache import CacheLayout
from auxtap.examples.upstream import run
from auxtap.rewriters.patch.diff import PatchSet, write_patch
from auxtap.rewriters.patch.plan import plan_capture

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/upstream.md").read_text()
pytestmark = [pytest.mark.network, pytest.mark.slow]


def shown(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- end of {name} -->", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def patch_set(shared_cache: CacheLayout) -> PatchSet:
    source = open_source(f"pypi:{run.RELEASE}", shared_cache)
    capture = plan_capture(source.tree, ("deepseek", "llama"), ())
    made = write_patch(source.tree, run.hooks_plan(capture, source))
    assert list(run.faults(source, made)) == []
    return made


def test_the_page_shows_the_hooks_and_every_call(patch_set: PatchSet) -> None:
    assert shown("hooks") == f"```python\n{run.HOOKS.read_text()}```\n"
    assert shown("calls") == run.calls_table(patch_set)
    assert len(patch_set.plan.insertions) == 2 * len(patch_set.changes) == 10
    assert b"auxtap" not in patch_set.patch


def test_a_call_that_is_not_guarded_is_a_fault(patch_set: PatchSet, shared_cache: CacheLayout) -> None:
    source = open_source(f"pypi:{run.RELEASE}", shared_cache)
    unguarded = patch_set.patch.replace(b"+        if hooks.observer is not None:", b"+        if True:", 1)
    other_name = patch_set.patch.replace(b"batch_made(ret, batch)", b"batch_made(ret, requests)")
    for patch, said in ((unguarded, "is not guarded"), (other_name, "may be unbound")):
        assert patch != patch_set.patch
        fault = next(run.faults(source, PatchSet(patch_set.plan, patch_set.changes, patch_set.inserted, patch)))
        assert said in fault
