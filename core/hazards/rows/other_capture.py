"""Another capture in the same server: SGLang's own from 0.5.23 on, and the one that SpecForge patches in."""

from auxtap.core.hazards.row import Hazard, Switch

HAZARD = Hazard(
    name="other_capture",
    reason="another capture chooses the layers of the same model as well",
    trigger="a capture that the tree has beside this one",
    refused=((Switch("enable_return_aux_hidden_states"),), (Switch("enable_spec_capture"),)),
)
