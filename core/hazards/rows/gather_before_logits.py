"""Layer norms that run sequence-parallel."""

from auxtap.core.hazards.row import Hazard, Switch

HAZARD = Hazard(
    name="gather_before_logits",
    reason="the logits processor gathers the final state over ranks, the captured states stay sharded",
    trigger="sequence-parallel layer norms",
    refused=((Switch("enable_layernorm_sp"),),),
)
