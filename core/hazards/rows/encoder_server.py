"""Servers of an encoder alone."""

from auxtap.core.hazards.row import Hazard, Switch

HAZARD = Hazard(
    name="encoder_server",
    reason="an encoder has no decoder blocks to capture",
    trigger="a server of the encoder alone",
    refused=((Switch("encoder_only"),),),
)
