"""Draft-config ids: lists that a setter's rules make into just the layers that are wanted, or none."""

from pathlib import PurePosixPath

import pytest

from auxtap.core.draft_ids import EAGLE3_SETTER, OffsetRule, chosen_layers, evaluate_condition, find_draft_ids
from auxtap.core.source_tree import MODELS_ROOT, SourceTree
from auxtap.tracer.tracing import trace_setters

ADDS = (OffsetRule(1),)
AS_IS = (OffsetRule(0),)
FIRST_IS_1 = (OffsetRule(1, "layer_ids and layer_ids[0] == 1"), OffsetRule(0, "otherwise"))
UP_TO_THE_END = (OffsetRule(0, "layer_ids and max(layer_ids) == num_layers"), OffsetRule(1, "otherwise"))


@pytest.mark.parametrize(
    ("rules", "layers", "ids"),
    [
        (ADDS, (3, 31, 59), (2, 30, 58)),
        (AS_IS, (3, 31, 59), (3, 31, 59)),
        (FIRST_IS_1, (3, 31, 59), (3, 31, 59)),
        (FIRST_IS_1, (2, 31, 59), (1, 30, 58)),
        # As they are they would begin with 1, and one less would not: another id goes first.
        (FIRST_IS_1, (1, 31, 59), (31, 1, 59)),
        (FIRST_IS_1, (1,), None),
        (UP_TO_THE_END, (3, 31, 59), (2, 30, 58)),
        (UP_TO_THE_END, (3, 61), (3, 61)),
        ((OffsetRule(None),), (3, 31), None),
        ((OffsetRule(1), OffsetRule(0)), (3, 31), None),
        ((OffsetRule(1, "ids_are_odd(layer_ids)"), OffsetRule(0, "otherwise")), (3, 31), None),
        ((OffsetRule(5),), (3, 31), None),
        (ADDS, (), None),
    ],
)
def test_a_list_counts_when_the_rules_make_the_layers_of_it(
    rules: tuple[OffsetRule, ...], layers: tuple[int, ...], ids: tuple[int, ...] | None
) -> None:
    assert find_draft_ids(layers, rules, 61) == ids
    if ids is not None:
        assert sorted(chosen_layers(ids, rules, 61) or ()) == list(layers)


def test_without_the_number_of_blocks_only_what_holds_for_every_number_counts() -> None:
    assert find_draft_ids((3, 31, 59), UP_TO_THE_END, None) == (2, 30, 58)
    half = (OffsetRule(0, "max(layer_ids) == num_layers // 2"), OffsetRule(1, "otherwise"))
    assert find_draft_ids((3, 31), half, None) is None
    assert find_draft_ids((3, 31), half, 62) == (3, 31)
    assert find_draft_ids((3, 31), (OffsetRule(-1),), None) is None


@pytest.mark.parametrize("source", ["", "layer_ids[", "layer_ids[7] == 1", "layer_ids == ", "lambda: 1", "a.b(c)"])
def test_a_condition_that_is_not_understood_has_no_answer(source: str) -> None:
    assert evaluate_condition(source, (1, 2), None) is None


HEAD = """
class Backbone(nn.Module):
    def forward(self, hidden_states, residual):
        aux_hidden_states = []
        for i in range(self.start_layer, self.end_layer):
            if i in self.layers_to_capture:
                aux_hidden_states.append(hidden_states + residual)
            hidden_states, residual = self.layers[i](hidden_states, residual)
        return hidden_states, aux_hidden_states

class Head(nn.Module):
    def __init__(self):
        self.model = Backbone()
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        self.capture_aux_hidden_states = True
        {body}

class Wrapper(nn.Module):
    def __init__(self):
        self.language_model = Head()
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        self.language_model.set_eagle3_layers_to_capture({handed})

class Heir(Head):
    pass

EntryClass = [Head, Wrapper, Heir]
"""
PLUS_ONE = "self.model.layers_to_capture = [val + 1 for val in layer_ids]"
BY_FIRST = """if layer_ids[0] == 1:
            self.model.layers_to_capture = [val + 1 for val in layer_ids]
        else:
            self.model.layers_to_capture = layer_ids"""


def setters_of(body: str, handed: str) -> dict[str, tuple[OffsetRule, ...]]:
    source = HEAD.format(body=body, handed=handed).encode()
    tree = SourceTree("0.0", "here", "0" * 40, {MODELS_ROOT / "one.py": source})
    found = trace_setters(tree)
    assert {(setter.file, setter.name) for setter in found} <= {(MODELS_ROOT / PurePosixPath("one.py"), EAGLE3_SETTER)}
    return {setter.model: setter.rules for setter in found}


def test_a_setter_is_followed_through_bases_and_the_classes_that_it_hands_the_ids_to() -> None:
    assert setters_of(PLUS_ONE, "layer_ids") == {"Head": ADDS, "Heir": ADDS, "Wrapper": ADDS}
    assert setters_of(PLUS_ONE, "[v + 1 for v in layer_ids]")["Wrapper"] == (OffsetRule(2),)
    by_first = setters_of(BY_FIRST, "layer_ids")
    assert by_first["Wrapper"] == by_first["Head"] == (OffsetRule(1, "layer_ids[0] == 1"), OffsetRule(0, "otherwise"))


def test_what_is_not_understood_has_no_row() -> None:
    # Which of two conditions decides cannot be said of the ids that the wrapper was given.
    assert "Wrapper" not in setters_of(BY_FIRST, "[v + 1 for v in layer_ids]")
    assert "Wrapper" not in setters_of(PLUS_ONE, "pick(layer_ids)")
    assert setters_of("self.model.layers_to_capture = choose(layer_ids)", "layer_ids") == {}
