"""All-to-all experts together with DP attention.

DP attention is `enable_dp_attention` up to 0.5.21, from 0.5.22 on a size; DeepEP has a switch of its own up to 0.5.2.
"""

from auxtap.core.hazards.row import Hazard, Switch

_BACKEND = Switch("moe_a2a_backend", harmless=("none",))
_DEEPEP = Switch("enable_deepep_moe")
_DP_ATTENTION = Switch("enable_dp_attention")
_DP_SIZE = Switch("attn_dp_size", spellings=("--attention-data-parallel-size",), harmless=("0", "1"))

HAZARD = Hazard(
    name="all_to_all_gather",
    reason="the gather before the capture mixes the rows of different data-parallel ranks",
    trigger="DP attention together with an all-to-all backend",
    refused=((_BACKEND, _DP_ATTENTION), (_BACKEND, _DP_SIZE), (_DEEPEP, _DP_ATTENTION)),
)
