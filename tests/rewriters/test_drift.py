"""Drift injected into real releases: the patch follows it with the right names, or refuses; it is never wrong."""

import re

import pytest

from auxtap.core.errors import PatchError
from auxtap.core.source_tree import SRT_ROOT, SourceTree
from auxtap.tests.rewriters.drifts import DRIFTS, RELEASES, SCHEDULE, Drift, drifted, propose, word
from auxtap.tests.shaped import BATCH
from auxtap.verification.values import value_faults

pytestmark = pytest.mark.network
CASES = [pytest.param(d, r, id=f"{d.name}-{r}") for d in DRIFTS for r in d.releases]


@pytest.mark.parametrize(("drift", "release"), CASES)
def test_drift_is_followed_or_refused(drift: Drift, release: str, trees: dict[str, SourceTree]) -> None:
    changed = drifted(drift, release, trees)
    if drift.refused:
        with pytest.raises(PatchError) as caught:
            propose(changed)
        assert drift.refused in caught.value.message
    else:
        assert f"if _auxtap is not None: {drift.line}" in [line.text.strip() for line in propose(changed)]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("path", "change", "fault"),
    [
        (BATCH, word("extend_seq_lens_cpu", "extend_rows_cpu"), "ForwardBatch has no field extend_seq_lens_cpu"),
        (
            BATCH,
            lambda text: re.sub(r"(\bret\.extend_prefix_lens_cpu = ).*", r"\1batch.seq_lens", text),
            "init_new gives",
        ),
        (BATCH, lambda text: text.replace("    MIXED = ", "    JOINED = ", 1), "ForwardMode has no MIXED"),
        (SCHEDULE, word("origin_input_ids", "prompt_ids"), "Req does not set origin_input_ids"),
        (SRT_ROOT / "configs/model_config.py", word("num_hidden_layers", "n_blocks"), "does not set num_hidden_layers"),
        (
            SRT_ROOT / "distributed/parallel_state.py",
            lambda text: text.replace("get_pp_group", "get_stages"),
            "has no get_pp_group",
        ),
    ],
)
def test_a_value_that_is_gone_or_comes_from_elsewhere_is_seen(release, path, change, fault, trees) -> None:
    tree = trees[release]
    assert not list(value_faults(tree))
    new = change(tree.files[path].decode()).encode()
    assert new != tree.files[path]
    changed = SourceTree(tree.release, tree.origin, tree.commit, {**tree.files, path: new})
    assert any(fault in found for found in value_faults(changed))
