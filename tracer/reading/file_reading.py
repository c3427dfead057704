"""Read every function of a model file that runs decoder blocks, or hands their states to the logits processor."""

from collections.abc import Iterator

import libcst as cst

from auxtap.tracer.reading.blocks import BlockAnswers
from auxtap.tracer.reading.forwards import Forward
from auxtap.tracer.reading.heads import may_change, read_head
from auxtap.tracer.reading.loops import BLOCKS
from auxtap.tracer.reading.native import read_native
from auxtap.tracer.reading.plain import read_plain
from auxtap.tracer.report.readings import Reading
from auxtap.tracer.source.fragments import SourceFile
from auxtap.tracer.source.names import holds_layers
from auxtap.tracer.source.outline import Unit


def read_file(source: SourceFile, answers: BlockAnswers) -> Iterator[Reading]:
    """Yield the readings of a file, those that capture first.

    Raises:
        SourceError: a function that is read cannot be parsed.
    """
    methods = [unit for unit in source.outline.units if len(unit.classes) == 1 and _is_read(unit)]
    capturing: set[str] = set()
    for forward in _forwards(source, [unit for unit in methods if holds_layers(source.text_of(unit))]):
        reading = read_native(forward, answers)
        if reading is not None:
            capturing.add(reading.class_name)
            yield reading
    forwards = [unit for unit in methods if unit.name == "forward" and unit.classes[0] not in capturing]
    running = [unit for unit in forwards if f".{BLOCKS}" in source.text_of(unit)]
    plain = (read_plain(forward) for forward in _forwards(source, running))
    yield from (reading for reading in plain if reading is not None)
    for forward in _forwards(source, [unit for unit in methods if may_change(source.text_of(unit))]):
        if objections := tuple(read_head(forward)):
            yield forward.begin("head", forward.function, objections)


def _is_read(unit: Unit) -> bool:
    return unit.name is not None and not unit.is_class_header and not unit.name.startswith(("set_", "__"))


def _forwards(source: SourceFile, units: list[Unit]) -> Iterator[Forward]:
    made = {outline.name: outline.made for outline in source.outline.classes}
    for unit in units:
        fragment = source.fragment(unit)
        (owner,) = fragment.module.body
        function = owner.body.body[0] if isinstance(owner, cst.ClassDef) else None
        if isinstance(function, cst.FunctionDef):
            yield Forward(source, fragment, unit.classes[0], function, made.get(unit.classes[0], {}))
