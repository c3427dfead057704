"""The prefix cache."""

from auxtap.core.hazards.row import Hazard, Needed

HAZARD = Hazard(
    name="prefix_cache",
    reason="rows of a prompt that the prefix cache has are not computed again and are missing from the states",
    trigger="a prompt that begins like an earlier one",
    needed=(Needed("disable_radix_cache", waived_by="--radix-cache"),),
    remedy="each prompt comes under a key of its own, and its rows are counted",
)
