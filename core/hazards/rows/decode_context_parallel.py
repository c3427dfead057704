"""Context parallelism of the decode."""

from auxtap.core.hazards.row import Hazard, Switch

HAZARD = Hazard(
    name="decode_context_parallel",
    reason="what context parallelism of the decode does to the rows of a prompt is not known",
    trigger="decode context parallelism",
    refused=((Switch("dcp_size", spellings=("--decode-context-parallel-size",), harmless=("0", "1")),),),
)
