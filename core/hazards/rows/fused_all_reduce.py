"""The fused all-reduce of FlashInfer and of AITER.

Seen in layers/communicator.py (0.5.9 `apply_flashinfer_allreduce_fusion`, read at every call). 0.5.9 turns it on by
itself and has no switch against it; from 0.5.10 on `enforce_disable_flashinfer_allreduce_fusion` wins over every
other setting (0.5.9 server_args.py, 0.5.15 arg_groups/overrides.py `_enforce_disable_allreduce_fusion`).
"""

from auxtap.core.hazards.row import Cleared, Hazard, Needed, Switch

_OFF = "enforce_disable_flashinfer_allreduce_fusion"

HAZARD = Hazard(
    name="fused_all_reduce",
    reason="at the capture a state may not be reduced over the TP ranks yet: short prompts come out wrong, long ones "
    "right",
    trigger="tensor parallelism with fused all-reduce",
    refused=((Switch("enable_aiter_allreduce_fusion"),), (Switch("flashinfer_allreduce_fusion_backend"),)),
    needed=(Needed(_OFF),),
    cleared=(Cleared("enable_flashinfer_allreduce_fusion", unless=_OFF),),
)
