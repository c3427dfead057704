"""Diffusion language models."""

from auxtap.core.hazards.row import Hazard, Switch

HAZARD = Hazard(
    name="diffusion_decoding",
    reason="the prompt runs through the layers more than once, in a forward mode that rows are not taken from",
    trigger="diffusion decoding",
    refused=((Switch("dllm_algorithm"),),),
)
