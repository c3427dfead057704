"""Prefill that is replayed from a recorded graph.

Off by default up to 0.5.9, on by default on CUDA from 0.5.10 on. From 0.5.14 on the backend for prefill has settings
of its own, which win over `disable_prefill_cuda_graph` (0.5.14 server_args.py `_parse_cuda_graph_config`, 0.5.23
arg_groups/cuda_graph_hook.py `parse_cuda_graph_config`: JSON before the backend before the switch).
"""

from auxtap.core.hazards.row import Hazard, Needed, Switch

HAZARD = Hazard(
    name="recorded_prefill",
    reason="the Python of the layer loop does not run when prefill is replayed from a recorded graph",
    trigger="prefill CUDA graphs",
    refused=(
        (Switch("enable_piecewise_cuda_graph"),),
        (Switch("enforce_piecewise_cuda_graph"),),
        (Switch("enable_breakable_cuda_graph"),),
        (Switch("cuda_graph_backend_prefill", harmless=("disabled",)),),
        (Switch("cuda_graph_config", harmless=("disabled", "none"), key=("prefill", "backend")),),
    ),
    needed=(Needed("disable_piecewise_cuda_graph"), Needed("disable_prefill_cuda_graph")),
)
