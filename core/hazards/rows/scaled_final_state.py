"""A final state that the logits processor does not get as it is."""

from auxtap.core.hazards.row import Hazard

HAZARD = Hazard(
    name="scaled_final_state",
    reason="the final state is scaled, or turned into another type, before the logits processor gets it",
    trigger="the final state of this model",
    remedy="record the change and undo it",
)
