"""Two-batch overlap."""

from auxtap.core.hazards.row import Hazard, Switch

HAZARD = Hazard(
    name="two_batch_overlap",
    reason="blocks that run in two overlapping halves do not get the list of states and are never captured",
    trigger="two-batch overlap",
    refused=((Switch("enable_two_batch_overlap"),),),
)
