"""Servers of embeddings."""

from auxtap.core.hazards.row import Hazard, Switch

HAZARD = Hazard(
    name="embedding_server",
    reason="the pooler's path does not reach the logits processor",
    trigger="a server of embeddings",
    refused=((Switch("is_embedding"),),),
)
