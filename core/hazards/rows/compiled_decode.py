"""A compiled decode beside a hook before the final norm."""

from auxtap.core.hazards.row import Hazard, Switch

HAZARD = Hazard(
    name="compiled_decode",
    reason="the hook that takes the state before the final norm would be compiled with the decode",
    trigger="torch.compile, where the state before the final norm is wanted",
    refused=((Switch("enable_torch_compile"),),),
    prenorm=True,
)
