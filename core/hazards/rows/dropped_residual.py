"""A residual that the capture leaves out."""

from auxtap.core.hazards.row import Hazard

HAZARD = Hazard(
    name="dropped_residual",
    reason="the block returns its residual apart, and what is captured leaves it out",
    trigger="capture in this model",
    remedy="the class is refused",
)
