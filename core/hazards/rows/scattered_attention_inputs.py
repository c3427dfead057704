"""Attention inputs that are scattered over the TP ranks.

Seen from 0.5.5.post3 on in layers/communicator.py `AttnTpContext` (0.5.21: layers/layer_boundary): between blocks each
rank holds its own rows, and the blocks gather behind the place of the capture.
"""

from auxtap.core.hazards.row import Hazard, Switch

HAZARD = Hazard(
    name="scattered_attention_inputs",
    reason="between blocks each TP rank holds its own rows only, and the captured states are not gathered",
    trigger="scattered attention inputs under tensor parallelism",
    refused=((Switch("enable_attn_tp_input_scattered"),),),
)
