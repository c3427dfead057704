"""Speculative decoding."""

from auxtap.core.hazards.row import Hazard, Switch

HAZARD = Hazard(
    name="draft_worker",
    reason="a draft model runs beside the target and hands states of its own to a logits processor of its own",
    trigger="speculative decoding",
    refused=(
        (Switch("speculative_algorithm"),),
        (Switch("speculative_draft_model_path", spellings=("--speculative-draft-model",)),),
    ),
)
