"""Prefill and decode in different servers."""

from auxtap.core.hazards.row import Hazard, Switch

HAZARD = Hazard(
    name="disaggregation",
    reason="prefill and decode run in different servers, and what one of them captures is not looked for",
    trigger="disaggregated prefill or decode",
    refused=((Switch("disaggregation_mode", harmless=("null",)),),),
)
