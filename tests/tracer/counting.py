"""Count the pipeline's names with `tokenize` and `ast`, apart from anything that the tracer does."""

import ast
import io
import re
import tokenize
from dataclasses import dataclass

# Written out again on purpose: the tracer's own list of names is what this count checks.
NAMES = re.compile(
    "aux_hidden_states?|dspark_aux_hidden_states|capture_aux_hidden_states|captured_last_layer_outputs"
    r"|layers_to_capture|set_\w*layers_to_capture|AuxHiddenState(?:Packer|List|Accumulator)"
    "|(?:eagle|dflash)_use_aux_hidden_state|_is_layer_to_capture|eagle_aux_hidden_state_layer_ids"
    "|return_aux_hidden_state_layer_ids|enable_return_aux_hidden_states|dspark_layers_to_capture"
    "|_dflash_layers_to_capture|dspark_hidden_states|capture_gathered|expected_aux_hidden_states"
    "|(?:init|configure)_aux_hidden_state_capture|pack_aux_hidden_states"
)
STAGE_NAMES = ("is_last_rank", "is_first_rank")
_SETTER = re.compile(r"set_\w*layers_to_capture")
ANYWHERE = re.compile(rf"(?<!\w)(?:{NAMES.pattern}|{'|'.join(STAGE_NAMES)})(?!\w)".encode())


@dataclass(frozen=True)
class Count:
    """NAME tokens of one file: of capture names, of stage names, and attributes that its setters assign besides."""

    n_capture: int
    n_stage: int
    n_assigned: int


def count_tokens(data: bytes) -> Count:
    tokens = [t.string for t in tokenize.tokenize(io.BytesIO(data).readline) if t.type == tokenize.NAME]
    module = ast.parse(data)
    assigned = {
        target.attr
        for function in ast.walk(module)
        if isinstance(function, ast.FunctionDef) and _SETTER.fullmatch(function.name)
        for node in ast.walk(function)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Attribute) and NAMES.fullmatch(target.attr) is None
    }
    attributes = [node.attr for node in ast.walk(module) if isinstance(node, ast.Attribute)]
    return Count(
        sum(NAMES.fullmatch(t) is not None for t in tokens),
        sum(t in STAGE_NAMES for t in tokens),
        sum(name in assigned for name in attributes),
    )
