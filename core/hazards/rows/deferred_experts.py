"""Experts of ktransformers whose part of a state comes one block later.

Seen from 0.5.5 on in layers/moe/kt_ep_wrapper.py `KTEPWrapperMethod.create_weights`: every layer but the last may
defer, so that the final state is whole and those between blocks are not.
"""

from auxtap.core.hazards.row import Hazard, Switch

HAZARD = Hazard(
    name="deferred_experts",
    reason="experts on the CPU add their part one block later: between blocks a state is not complete",
    trigger="deferred experts of ktransformers",
    refused=((Switch("kt_max_deferred_experts_per_token", harmless=("0",)),),),
)
