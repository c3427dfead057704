"""Prefill that passes the layers in pieces."""

from auxtap.core.hazards.row import Hazard, Switch

HAZARD = Hazard(
    name="split_prefill",
    reason="a prompt passes the layers in pieces, in a forward mode that rows are not taken from",
    trigger="multiplexed prefill and decode",
    refused=((Switch("enable_pdmux"),),),
)
