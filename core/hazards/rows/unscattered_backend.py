"""All-to-all backends of a mixture of experts that the gather before the capture does not know."""

from auxtap.core.hazards.row import Hazard, Switch

HAZARD = Hazard(
    name="unscattered_backend",
    reason="states are gathered before the capture for some all-to-all backends only; under the others each rank "
    "keeps its own rows",
    trigger="an all-to-all backend that the gather does not name",
    refused=((Switch("moe_a2a_backend", only=("mori",)),),),
)
