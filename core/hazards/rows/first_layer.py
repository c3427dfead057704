"""The first block, before which there is no residual."""

from auxtap.core.hazards.row import Hazard

HAZARD = Hazard(
    name="first_layer",
    reason="capture index 0 fails: there is no residual before the first block",
    trigger="capture index 0",
    remedy="indices begin at 1",
)
