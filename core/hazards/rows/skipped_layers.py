"""Layers that another function runs."""

from auxtap.core.hazards.row import Hazard

HAZARD = Hazard(
    name="skipped_layers",
    reason="layers that another function runs do not get the list of states and are never captured",
    trigger="see the condition around the call",
    remedy="a class with such a call is captured only where the call is shut out while layers are chosen",
)
