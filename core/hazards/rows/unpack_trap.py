"""The switch for capture without a layer to capture."""

from auxtap.core.hazards.row import Hazard

HAZARD = Hazard(
    name="unpack_trap",
    reason="with the switch on and no layer of this stage chosen, one tensor is returned and unpacked as a pair: it "
    "fails, or goes on with single rows when the batch has exactly two",
    trigger="a choice of layers of which this stage has none",
    remedy="the switch goes on only where at least one chosen layer is run",
)
