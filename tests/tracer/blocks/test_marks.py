"""Who marks the layers that a loop asks."""

import pytest

from auxtap.tests.tracer.blocks.small import MODEL, small_tree
from auxtap.tracer.blocks.marks import MarkReading, read_mark
from auxtap.tracer.blocks.naming import Names
from auxtap.tracer.flow.classes import ClassIndex

MARKS = '            setattr(self.layers[layer_id], "_is_layer_to_capture", True)\n'
EACH = "        for layer_id in self.layers_to_capture:\n"
SETS = "        self.layers_to_capture = layers_to_capture\n"


def mark(name: str, *edit: str) -> MarkReading:
    index = ClassIndex(small_tree({MODEL: (edit[0], edit[1])} if edit else {}))
    return read_mark(Names(index), index.classes_of(MODEL)[name], "_is_layer_to_capture")


def test_a_setter_of_its_own() -> None:
    assert mark("SmallModel") == mark("HandingModel") == MarkReading("setter")
    plainly = "            self.layers[layer_id]._is_layer_to_capture = True\n"
    guarded = f"            if layer_id < len(self.layers):\n    {plainly}"
    assert mark("SmallModel", MARKS, plainly) == mark("SmallModel", MARKS, guarded) == MarkReading("setter")
    assert mark("SmallModel", SETS, SETS.replace("= layers", "= list(layers").replace("\n", ")\n")) == MarkReading(
        "setter"
    )


def test_nobody_marks() -> None:
    assert mark("ListModel") == MarkReading("nobody")
    assert mark("SmallModel", EACH + MARKS, "") == MarkReading("nobody")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (MARKS, MARKS.replace("[layer_id]", "[layer_id - 1]")),
        (MARKS, MARKS.replace("True", "False")),
        (MARKS, MARKS.replace("_is_layer", "_is_other")),
        (EACH, "        for layer_id in range(len(self.layers)):\n"),
        (EACH, "        for layer_id in self.layers_to_capture[1:]:\n"),
        (SETS, "        self.layers_to_capture = [i + 1 for i in layers_to_capture]\n"),
        (SETS, ""),
        ("    def set_eagle3", "    @shifted\n    def set_eagle3"),
        (MARKS, f"{MARKS}        self.layers_to_capture = []\n"),
    ],
)
def test_marks_that_are_not_those_of_the_list(old: str, new: str) -> None:
    reading = mark("SmallModel", old, new)
    assert reading.objection is not None
    assert reading.objection.at.scope == "SmallModel.set_eagle3_layers_to_capture"
