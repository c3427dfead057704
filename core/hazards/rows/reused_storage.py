"""States that are kept without a copy."""

from auxtap.core.hazards.row import Hazard

HAZARD = Hazard(
    name="reused_storage",
    reason="a state is kept without a copy, and a later layer writes into its storage: what is read in the end is "
    "another state",
    trigger="capture in this model, where the lines below run (norms that add in place do so on some devices only)",
    remedy="keep a copy, or compare with a reference before relying on these layers",
)
