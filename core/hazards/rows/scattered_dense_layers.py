"""Dense blocks of a mixture-of-experts model that run fully data-parallel.

Seen in layers/communicator.py (`enable_moe_dense_fully_dp`): a size of 1 and no other scatters them.
"""

from auxtap.core.hazards.row import Hazard, Switch

HAZARD = Hazard(
    name="scattered_dense_layers",
    reason="dense blocks leave their rows scattered over the ranks; the gather before the capture begins behind them",
    trigger="dense blocks that run fully data-parallel",
    refused=((Switch("moe_dense_tp_size", only=("1",)),),),
)
