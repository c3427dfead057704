"""When an entry of a layer list is the capture index of a state that stays as it was, and when not."""

import pytest

from auxtap.tests.tracer.reading.sources import AT_THE_END, AT_THE_TOP, read_one, reason_of

APPEND = "aux_hidden_states.append(hidden_states + residual)"
TEST = "if i in self.layers_to_capture:"
TOP_CALL = "hidden_states, residual = self.layers[i](positions, hidden_states, forward_batch, residual)"
RANGE = "range(self.start_layer, self.end_layer)"
ROUND, FUNCTION = "\n            ", "\n        "
MADE, EMPTY = "aux_hidden_states = []", "if len(aux_hidden_states) == 0:"
RETURN = "return hidden_states, aux_hidden_states"
EXIT = "if not self.pp_group.is_last_rank:\n            return"

FIRST = AT_THE_END[AT_THE_END.index("        if self.start_layer") : AT_THE_END.index("        for i in")]
BLOCK = "hidden_states, residual = layer(positions, hidden_states, forward_batch, residual)"
NEXT = "if i + 1 in self.layers_to_capture:"
FETCH = "layer = self.layers[i]"
SUM, END = "hidden_states + residual if residual is not None else hidden_states", "        return hidden_states, aux"
CAPTURE = f"                {NEXT}\n                    aux_hidden_states.append({SUM})"
INDENT = "\n                "

NO_FORM = "no known form of what enters a block"
CHANGED = "changed before it enters the block"
COLLECTOR = "what it does to the collector, or to the number of the block"
COUNT = "the loop does not count the blocks"
NOT_NEXT = "what enters that one, or a stage's first, may be something else"
LEFT_OUT = "a block may be left out of a round"
BECOMES = "what becomes of the collector here"
NOT_NUMBER = "not the number of the block"


def taking(value: str) -> tuple[str, str]:
    return APPEND, f"aux_hidden_states.append({value})"


def before_the_block(line: str) -> tuple[str, str]:
    return TOP_CALL, f"{line}{ROUND}{TOP_CALL}"


def behind_the_loop(lines: str) -> tuple[str, str]:
    return EMPTY, f"{lines}{FUNCTION}{EMPTY}"


def begins_with(line: str) -> tuple[str, str]:
    return MADE, f"{line}{FUNCTION}{MADE}"


# What is done to the form that is taken at the top of a round, and what is said of it.
OBJECTIONS = {
    "value: the norm of the sum": (taking("self.norm(hidden_states + residual)"), NO_FORM),
    "value: the block's own norm": (taking("self.layers[i].input_layernorm(hidden_states + residual)"), NO_FORM),
    "value: a norm through a name": (
        (APPEND, f"x = self.norm(hidden_states + residual){INDENT}aux_hidden_states.append(x)"),
        CHANGED,
    ),
    "value: a copy without the residual": (taking("hidden_states.clone()"), CHANGED),
    "value: a copy of the residual": (taking("residual.clone()"), CHANGED),
    "value: a difference": (taking("hidden_states - residual"), NO_FORM),
    "value: twice the state": (taking("hidden_states * 2"), NO_FORM),
    "value: twice the sum": (taking("(hidden_states + residual) * 2"), NO_FORM),
    "value: a view": (taking("hidden_states.view(-1)"), NO_FORM),
    "value: detached": (taking("hidden_states.detach()"), NO_FORM),
    "value: zeros": (taking("torch.zeros_like(hidden_states)"), NO_FORM),
    "value: another type": (taking("(hidden_states + residual).float()"), NO_FORM),
    "value: the state twice": (taking("hidden_states + hidden_states"), NO_FORM),
    "value: a kept tensor": (taking("hidden_states"), "it keeps a tensor that later blocks may write over"),
    "value: the wrong way round": (taking("hidden_states + residual if residual is None else hidden_states"), NO_FORM),
    "value: by a condition": (taking("hidden_states + residual if i > 3 else hidden_states"), NO_FORM),
    "value: a gather where rows are whole": (
        taking("tensor_model_parallel_all_gather(hidden_states + residual, dim=0)"),
        "it gathers the rows of the ranks where they are whole",
    ),
    "place: a method that is none": ((APPEND, "aux_hidden_states.push(hidden_states + residual)"), COLLECTOR),
    "place: at the front": ((APPEND, "aux_hidden_states.insert(0, hidden_states + residual)"), COLLECTOR),
    "place: a longer list": ((APPEND, "aux_hidden_states += [hidden_states + residual]"), COLLECTOR),
    "place: twice": ((APPEND, f"{APPEND}{INDENT}{APPEND}"), "a round takes 2 states"),
    "place: within a try": (
        (APPEND, f"try:{INDENT}    {APPEND}{INDENT}finally:{INDENT}    pass"),
        "a statement of this kind that touches a state",
    ),
    "loop: the next block": ((TOP_CALL, TOP_CALL.replace("[i]", "[i + 1]")), "not known to be that of the round"),
    "loop: another block by name": (
        (TOP_CALL, f"layer = self.layers[i + 1]{ROUND}{TOP_CALL.replace('self.layers[i]', 'layer')}"),
        "not known to be that of the round",
    ),
    "loop: the number changed": ((TEST, f"i = i - 1{ROUND}{TEST}"), COLLECTOR),
    "loop: reversed": ((RANGE, f"reversed({RANGE})"), COUNT),
    "loop: begun later": ((RANGE, "range(self.start_layer + 1, self.end_layer)"), COUNT),
    "loop: by twos": ((RANGE, "range(self.start_layer, self.end_layer, 2)"), COUNT),
    "loop: another's": ((RANGE, "range(self.draft.start_layer, self.draft.end_layer)"), "the blocks of another"),
    "loop: from a local": ((RANGE, "range(first_start_layer, self.end_layer)"), "is not the stage's own"),
    "loop: an else": (
        (EXIT, f"else:{ROUND}aux_hidden_states = aux_hidden_states[::-1]{FUNCTION}{EXIT}"),
        "an else of the loop",
    ),
    "loop: ended early": ((TEST, f"if i == 3:{INDENT}break{ROUND}{TEST}"), "it may leave the loop"),
    "loop: a block left out": (before_the_block(f"if i in skipped:{INDENT}continue"), LEFT_OUT),
    "loop: a block on one way": ((TOP_CALL, f"if i < n:{INDENT}{TOP_CALL}"), LEFT_OUT),
    "loop: doubled": ((TOP_CALL, f"{TOP_CALL}{ROUND}{TOP_CALL}"), "a round has 2 calls of a block"),
    "change: bound anew": (before_the_block("residual = a(residual)"), CHANGED),
    "change: in place": (before_the_block("hidden_states += deep[i]"), CHANGED),
    "change: by a method": (before_the_block("hidden_states.mul_(2)"), CHANGED),
    "change: by a function": (before_the_block("torch.add(residual, 1, out=residual)"), CHANGED),
    "change: by a method got by name": (before_the_block('getattr(hidden_states, "mul_", None)(2)'), CHANGED),
    "change: in part": (before_the_block("hidden_states[0] = 0"), CHANGED),
    "change: of what was kept in an attribute": (
        (TEST, f"forward_batch.kept = hidden_states{ROUND}{TEST}"),
        "where it keeps a state",
    ),
    "change: of what was kept in a list": (
        (TOP_CALL, f"kept[0].mul_(2){ROUND}{TOP_CALL}{ROUND}kept.append(hidden_states)"),
        CHANGED,
    ),
    "change: of what was given away": ((TEST, f"keep(hidden_states){ROUND}{TEST}"), CHANGED),
    "change: of what was given away before": ((TOP_CALL, f"{TOP_CALL}{ROUND}keep(hidden_states)"), "kept elsewhere"),
    "change: another is given": ((TOP_CALL, TOP_CALL.replace("s, forward", "s * 2, forward")), "is not handed to"),
    "condition: decode only": (
        (TEST, "if i in self.layers_to_capture and forward_batch.forward_mode.is_decode():"),
        "a round takes nothing where not (forward_batch.forward_mode.is_decode())",
    ),
    "condition: or another": ((TEST, "if i in self.layers_to_capture or i == 0:"), NOT_NUMBER),
    "condition: not": ((TEST, "if i not in self.layers_to_capture:"), NOT_NUMBER),
    "condition: one before": ((TEST, "if i - 1 in self.layers_to_capture:"), NOT_NUMBER),
    "condition: the next one's": ((TEST, "if i + 1 in self.layers_to_capture:"), NOT_NEXT),
    "condition: another list": ((TEST, "if i in self.dspark_layers_to_capture:"), "which the tap does not fill"),
    "behind: the final state's rows are joined": (
        behind_the_loop(
            "if self.spread:\n            joined = torch.empty(rows)\n            gather_into(joined, hidden_states)\n"
            "            hidden_states = joined"
        ),
        "what is made the final state here",
    ),
    "behind: comprehension": (behind_the_loop("aux_hidden_states = [2 * x for x in aux_hidden_states]"), BECOMES),
    "behind: reversal": (behind_the_loop("aux_hidden_states.reverse()"), BECOMES),
    "behind: cleared": (behind_the_loop("aux_hidden_states.clear()"), BECOMES),
    "behind: written in place": (behind_the_loop("aux_hidden_states[0].mul_(2)"), BECOMES),
    "behind: one by one": (behind_the_loop("for each in aux_hidden_states:\n            each.zero_()"), BECOMES),
    "behind: by another name": (behind_the_loop("others = aux_hidden_states"), BECOMES),
    "behind: a helper": (behind_the_loop("self.finish(aux_hidden_states)"), BECOMES),
    "behind: on one way": (
        behind_the_loop("if decode:\n            aux_hidden_states = aux_hidden_states[::-1]"),
        BECOMES,
    ),
    "behind: in the exit": ((EXIT, EXIT.replace("return", "aux_hidden_states.clear()\n            return")), BECOMES),
    "behind: dropped on one way": (
        behind_the_loop("if forward_batch.forward_mode.is_extend():\n            return hidden_states"),
        "it returns without what it captured",
    ),
    "behind: dropped with one": ((EMPTY, EMPTY.replace("0", "1")), "it returns without what it captured"),
    "behind: never returned": ((RETURN, "return hidden_states"), "it returns without what it captured"),
    "behind: in another place": ((RETURN, "return aux_hidden_states, hidden_states"), BECOMES),
    "behind: a part": ((RETURN, "return hidden_states, aux_hidden_states[1:]"), BECOMES),
    "function: the list": (begins_with("self.layers_to_capture = []"), "what it does to self.layers_to_capture"),
    "function: the blocks": (begins_with("self.layers.reverse()"), "what it does to self.layers"),
    "function: the stage": (begins_with("self.start_layer += 1"), "what it does to self.start_layer"),
    "function: by name": (begins_with('setattr(self, "start_layer", 1)'), "it uses setattr"),
    "function: within it": (
        begins_with("def fix():\n            hidden_states.mul_(2)"),
        "a function within it that touches a state",
    ),
    "function: a return before": (begins_with("if quick:\n            return hidden_states"), "before it captures"),
    "function: a filled collector": ((MADE, "aux_hidden_states = [input_ids]"), "it fills 0 collectors"),
    "function: an unknown collector": ((MADE, "aux_hidden_states = Deque()"), "it fills 0 collectors"),
}
# Other ways of writing the same, and what changes nothing of it.
SAME = {
    "annotated": (MADE, "aux_hidden_states: List[Tensor] = []"),
    "a copied sum": taking("(hidden_states + residual).clone()"),
    "none at first": taking("hidden_states if residual is None else hidden_states + residual"),
    "a name for the sum": (APPEND, f"x = hidden_states + residual{INDENT}aux_hidden_states.append(x)"),
    "a name for the block": (
        TOP_CALL,
        f"layer: ABlock = self.layers[i]{ROUND}{TOP_CALL.replace('self.layers[i]', 'layer.forward')}",
    ),
    "asked and not changed": before_the_block("if hidden_states.shape[0] == 0 and residual is not None: rows = 0"),
    "changed behind the block": (TOP_CALL, f"{TOP_CALL}{ROUND}hidden_states.add_(deep[i])"),
    "whole blocks": (RANGE, "range(len(self.layers))"),
    "an exit on one line": (EXIT, EXIT.replace("\n            ", " ")),
    "the end is asked for": behind_the_loop(
        "if self.end_layer in self.layers_to_capture:\n            aux_hidden_states.append(hidden_states)"
    ),
    "an idle batch": behind_the_loop("if forward_batch.forward_mode.is_idle():\n            return hidden_states"),
    "a choice of returns": (
        f"{EMPTY}\n            return hidden_states{FUNCTION}{RETURN}",
        "return (hidden_states, aux_hidden_states) if aux_hidden_states else hidden_states",
    ),
}
# What is done to the form that is taken at the end of a round; each must be refused.
NOT_TAKEN = {
    "no first": (FIRST, ""),
    "another first": ("if self.start_layer in", "if self.end_layer in"),
    "a first that is kept": (FIRST, FIRST.replace(SUM, "hidden_states")),
    "a first that fills another": (FIRST, FIRST.replace("aux_hidden", "first")),
    "a first that fills nothing": (FIRST, f"{FIRST.splitlines()[0]}\n            pass\n"),
    "a first of another value": (FIRST, FIRST.replace(SUM, "self.embed_tokens(input_ids)")),
    "a first with another way": (FIRST, f"{FIRST}        else:\n            aux_hidden_states.append(residual)\n"),
    "a first taken twice": (FIRST, FIRST + FIRST.splitlines()[1] + "\n"),
    "changed behind the first": (FIRST, f"{FIRST}        hidden_states = self.embed_norm(hidden_states)\n"),
    "changed behind the capture": (END, f"{INDENT[1:]}hidden_states += 1\n{END}"),
    "changed before the block": (FETCH, f"{FETCH}{INDENT}hidden_states = a(hidden_states)"),
    "changed in place": (FETCH, f"{FETCH}{INDENT}hidden_states += deep[i]"),
    "changed by a method": (FETCH, f"{FETCH}{INDENT}hidden_states.add_(deep[i])"),
    "changed in part": (FETCH, f"{FETCH}{INDENT}hidden_states[:, :4] += deep[i]"),
    "changed on its way into the block": ("layer(positions, hidden_states", "layer(positions, self.pre(hidden_states)"),
    "a round that may end early": (FETCH, f"{FETCH}{INDENT}if i in skipped:{INDENT}    continue"),
    "a block on one way": (BLOCK, f"if i < n:{INDENT}    {BLOCK}"),
    "another count": (RANGE, "range(len(self.layers))"),
    "another's count": (RANGE, "range(self.draft.start_layer, self.draft.end_layer)"),
    "taken twice": (
        FETCH,
        f"{FETCH}{INDENT}if i in self.layers_to_capture:{INDENT}    aux_hidden_states.append({SUM})",
    ),
    "behind the block": ("i + 1 in", "i in"),
    "two further": ("i + 1 in", "i + 2 in"),
    "a kept tensor": (CAPTURE, CAPTURE.replace(SUM, "hidden_states")),
    "another's copy": (CAPTURE, CAPTURE.replace(SUM, "self.buffer.clone()")),
    "the residual alone": (CAPTURE, CAPTURE.replace(SUM, "residual.clone()")),
    "two calls of a block": (BLOCK, f"{BLOCK}{INDENT}{BLOCK}"),
}


def changed(source: str, old: str, new: str) -> str:
    assert source.count(old) == 1, "the change must be made"
    return source.replace(old, new)


def test_what_enters_a_block_is_taken_at_the_top_of_its_round() -> None:
    reading = read_one(AT_THE_TOP)
    assert not reading.objections and reading.kind == "native"
    (place,) = reading.places
    assert (place.form, place.when, place.shift, place.at.code) == ("sum", "before", 0, APPEND)
    assert (reading.index, reading.hidden, reading.residual) == ("i", "hidden_states", "residual")
    assert (reading.accumulator, reading.batches, reading.norm) == ("aux_hidden_states", ("forward_batch",), "norm")
    assert len(reading.exits) == 1


def test_what_enters_a_block_is_taken_where_the_one_before_ends() -> None:
    reading = read_one(AT_THE_END)
    assert not reading.objections and [(place.form, place.when) for place in reading.places] == [("sum", "next")]


@pytest.mark.parametrize("case", OBJECTIONS)
def test_objects(case: str) -> None:
    (old, new), reason = OBJECTIONS[case]
    assert reason in reason_of(changed(AT_THE_TOP, old, new))


@pytest.mark.parametrize("case", SAME)
def test_reads_the_same(case: str) -> None:
    assert reason_of(changed(AT_THE_TOP, *SAME[case])) == ""


@pytest.mark.parametrize("case", NOT_TAKEN)
def test_objects_to_what_is_not_the_next_input(case: str) -> None:
    assert reason_of(changed(AT_THE_END, *NOT_TAKEN[case])) != ""


def test_a_tensor_by_another_name_is_the_same_tensor() -> None:
    aliased = changed(AT_THE_TOP, "residual = None", "residual = pp_proxy_tensors['residual']")
    assert reason_of(aliased) == ""
    assert CHANGED in reason_of(changed(aliased, *before_the_block("pp_proxy_tensors['residual'].zero_()")))


CLASS = "class AModel:"
MAKES = """class AModel:
    def __init__(self, config):
        self.layers, self.start_layer, self.end_layer = make_layers(config.num_hidden_layers, lambda idx: ABlock())
        self.layers_to_capture = []
"""


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (MADE, f"len = lambda each: 0\n        {MADE}", "it binds len anew"),
        (CLASS, f"from elsewhere import reverse as range\n\n\n{CLASS}", "its module binds range anew"),
        (CLASS, f"def getattr(*given): ...\n\n\n{CLASS}", "its module binds getattr anew"),
        (CLASS, f"{MAKES}        self.layers = self.layers[::-1]\n", "does to self.layers is not followed"),
        (CLASS, f"{MAKES}        self.layers.reverse()\n", "does to self.layers is not followed"),
        (
            CLASS,
            f"{MAKES}        blocks = self.layers\n        blocks.reverse()\n",
            "does to self.layers is not followed",
        ),
        (CLASS, f"{MAKES}        turn(self.layers)\n", "does to self.layers is not followed"),
        (CLASS, f"{MAKES}        self.layers[0] = self.layers[1]\n", "does to self.layers is not followed"),
        (
            CLASS,
            f"{MAKES}        self.start_layer = self.start_layer + 1\n",
            "does to self.start_layer is not followed",
        ),
        (CLASS, f"{MAKES}        self.start_layer += 1\n", "does to self.start_layer is not followed"),
        (CLASS, f"{MAKES}        self.start_layer = 1\n", "self.start_layer is bound twice"),
        (CLASS, f"{MAKES}        self.forward = turned(self.forward)\n", "puts around a call of it is not followed"),
        (CLASS, f"{MAKES}        setattr(self, 'forward', turned)\n", "puts around a call of it is not followed"),
        (CLASS, f"{MAKES}        self.register_forward_hook(turned)\n", "puts around a call of it is not followed"),
        (CLASS, f"def make_layers(*given): ...\n\n\n{CLASS}", "its module binds make_layers anew"),
        (CLASS, f"make_layers = turned(make_layers)\n\n\n{CLASS}", "its module binds make_layers anew"),
    ],
)
def test_objects_to_what_is_done_around_the_forward(old: str, new: str, reason: str) -> None:
    assert reason in reason_of(changed(AT_THE_TOP, old, new))


@pytest.mark.parametrize(
    "line",
    [
        'setattr(AModel, "forward", turned(AModel.forward))',
        'vars(AModel)["forward"] = turned',
        "for each in (AModel,):\n    each.forward = turned",
        "if True:\n    from elsewhere import turned\n    type.__setattr__(AModel, 'forward', turned)",
        "for each in (AModel,):\n    turn(each)",
    ],
)
def test_objects_to_what_its_module_does_to_the_class(line: str) -> None:
    assert "to its class is not followed" in reason_of(f"{AT_THE_TOP}\n\n{line}\n")


@pytest.mark.parametrize(
    "line", ["self.model.layers.reverse()", "self.model.start_layer = 1", "self.model.layers = self.model.layers[::-1]"]
)
def test_objects_to_what_a_holder_does_to_the_blocks(line: str) -> None:
    head = f"class AForCausalLM:\n    def __init__(self):\n        self.model = AModel()\n        {line}\n"
    assert "does to the blocks is not followed" in reason_of(f"{AT_THE_TOP}\n\n{head}")


def test_a_class_that_is_offered_and_made_in_the_usual_way_is_read() -> None:
    source = changed(AT_THE_TOP, CLASS, MAKES)
    offered = "\n\nfor each in (AModel,):\n    each.reason = staticmethod(reason)\n\n\nEntryClass = [AModel]\n"
    assert reason_of(source + offered) == ""


def test_the_end_that_is_never_asked_for_does_not_open_the_other_way() -> None:
    norm, taking = "self.norm(hidden_states, residual)", "aux_hidden_states.append"
    asked = f"self.norm(hidden_states, take={taking} if self.end_layer in self.layers_to_capture else None)"
    assert reason_of(changed(AT_THE_TOP, norm, asked)) == ""
    assert BECOMES in reason_of(changed(AT_THE_TOP, norm, asked.replace("else None", "else aux_hidden_states.pop()")))


def test_only_the_block_of_the_round_is_asked_for_its_mark() -> None:
    source = """
class AModel:
    def forward(self, input_ids, positions, forward_batch):
        hidden_states, residual = self.embed_tokens(input_ids), None
        aux_hidden_states = []
        for i in range(len(self.layers)):
            layer = self.layers[i]
            if getattr(layer, "_is_layer_to_capture", False):
                aux_hidden_states.append(hidden_states + residual)
            hidden_states, residual = layer(positions, hidden_states, residual)
        return hidden_states, aux_hidden_states
"""
    reading = read_one(source)
    assert not reading.objections and reading.mark == "_is_layer_to_capture", "nothing sets it but the tap"
    other = changed(source, "layer = self.layers[i]", "layer = self.layers[i]\n            before = self.layers[i - 1]")
    assert "it asks is not known" in reason_of(other.replace("getattr(layer,", "getattr(before,"))


SCATTERED = changed(
    AT_THE_TOP,
    APPEND,
    """if self.enable_a2a_moe and i > self.first_k_dense_replace:
                    state = tensor_model_parallel_all_gather(hidden_states + residual, dim=0)
                    aux_hidden_states.append(state)
                else:
                    aux_hidden_states.append(hidden_states + residual)""",
)
GATHER = "tensor_model_parallel_all_gather(hidden_states + residual, dim=0)"


def test_the_gather_of_scattered_rows_is_read() -> None:
    reading = read_one(SCATTERED)
    assert not reading.objections and [place.form for place in reading.places] == ["gather", "sum"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (GATHER, GATHER.replace("dim=0", "dim=1")),
        (GATHER, GATHER.replace(", dim=0", "")),
        (GATHER, GATHER.replace("hidden_states + residual", "self.norm(hidden_states + residual)")),
        (GATHER, GATHER.replace("hidden_states + residual", "hidden_states")),
        ("append(hidden_states + residual)", "append(hidden_states.clone())"),
        ("if self.enable_a2a_moe and i > self.first_k_dense_replace:", "if not self.enable_a2a_moe:"),
        ("i > self.first_k_dense_replace", "i >= self.first_k_dense_replace"),
        (
            "else:\n                    aux_hidden_states.append(hidden_states + residual)",
            "else:\n" + " " * 20 + "pass",
        ),
    ],
)
def test_another_gather_is_not(old: str, new: str) -> None:
    assert reason_of(changed(SCATTERED, old, new)) != ""


STAGED = changed(
    changed(AT_THE_TOP, RANGE, "range(normal_start_layer, normal_end_layer)"),
    MADE,
    f"""normal_start_layer = self.start_layer
        normal_end_layer = self.end_layer
        if forward_batch.can_run_tbo:
            normal_end_layer = normal_start_layer = 0
        {MADE}""",
)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("normal_start_layer = self.start_layer", "normal_start_layer = 0"),
        ("normal_end_layer = self.end_layer", "normal_end_layer = self.end_layer - 1"),
        ("if forward_batch.can_run_tbo:", "if forward_batch.can_run_graph:"),
        (MADE, f"normal_start_layer += 1\n        {MADE}"),
    ],
)
def test_bounds_are_those_of_the_stage_but_for_two_batches(old: str, new: str) -> None:
    assert reason_of(STAGED) == ""
    assert "is not the stage's own" in reason_of(changed(STAGED, old, new))
