"""Prompts that are computed in pieces."""

from auxtap.core.hazards.row import Hazard

HAZARD = Hazard(
    name="chunked_prefill",
    reason="a long prompt is computed in pieces: each forward has the states of its own rows only",
    trigger="prompts longer than a chunk",
    remedy="pieces are joined by their offset",
)
