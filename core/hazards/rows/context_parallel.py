"""Context parallelism of the prefill, under the names that it had."""

from auxtap.core.hazards.row import Hazard, Switch

HAZARD = Hazard(
    name="context_parallel",
    reason="the final state is gathered over the context-parallel ranks, the captured states are not",
    trigger="prefill context parallelism",
    refused=(
        (Switch("enable_nsa_prefill_context_parallel"),),
        (Switch("enable_dsa_prefill_context_parallel"),),
        (Switch("enable_prefill_context_parallel"),),
        (Switch("enable_prefill_cp"),),
        (Switch("attn_cp_size", spellings=("--attention-context-parallel-size",), harmless=("0", "1")),),
    ),
)
