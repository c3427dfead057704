"""Draw the way of a state through one model class as an SVG: boxes from the setter to the answer, losses below."""

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from auxtap.tracer.report import Flow, FlowStep

_WIDTH, _GAP, _TOP, _LINE = 196, 34, 12, 17
_MAX_LINES = 6
_CHARACTERS = 27

# What each box is called, and the kinds of steps in it.
_BOXES = (
    ("choose layers", ("select", "switch")),
    ("collect", ("collect", "choose")),
    ("capture", ("gather", "capture", "carry")),
    ("return", ("return",)),
    ("hand over", ("unpack", "hand_over")),
    ("logits processor", ("pick", "join", "keep", "check")),
    ("answer", ("output", "to_cpu", "per_request", "answer")),
)


@dataclass(frozen=True)
class _Box:
    title: str
    lines: tuple[str, ...]
    is_bad: bool


def draw_flow(flow: Flow, delivery: Iterable[FlowStep]) -> str:
    """Return one diagram: a box for each part of the way, a dashed one where the way is broken or states are lost."""
    steps = [*flow.steps, *(delivery if flow.steps else ())]
    boxes = [_Box("entry", tuple(f"{link.name}" for link in flow.links), False)]
    for title, kinds in _BOXES:
        lines = _lines(step for step in steps if step.kind in kinds)
        boxes.append(_Box(title, lines or ("nothing",), not lines))
    losses = [step for step in steps if step.kind == "exit" and "drops" in step.text]
    below = [_Box("lost", _lines(losses), True)] if losses else []
    below += [_Box("broken", _wrap(reason), True) for reason in flow.breaks]
    height = _TOP + max(_height(box) for box in boxes)
    lower = height + 40
    width = len(boxes) * (_WIDTH + _GAP)
    total = lower + max((_height(box) for box in below), default=-30) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{total}" viewBox="0 0 {width} {total}" '
        f'role="img" aria-label="{escape(f"flow of {flow.model}")}">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z"/></marker></defs>',
    ]
    for number, box in enumerate(boxes):
        left = number * (_WIDTH + _GAP)
        if number:
            parts.append(
                f'<path d="M{left - _GAP} {_TOP + 22} H{left - 2}" marker-end="url(#tip)"'
                f"{' class=' + chr(34) + 'bad' + chr(34) if box.is_bad else ''}/>"
            )
        parts.append(_draw(box, left, _TOP))
    # Losses hang below the capture, where the stage exit takes them.
    for number, box in enumerate(below):
        left = (3 + number) * (_WIDTH + _GAP)
        parts.append(
            f'<path class="bad" d="M{left + 40} {_TOP + _height(boxes[3])} V{lower - 2}" marker-end="url(#tip)"/>'
        )
        parts.append(_draw(box, left, lower))
    return "".join((*parts, "</svg>"))


def _draw(box: _Box, left: int, top: int) -> str:
    style = ' class="bad"' if box.is_bad else ""
    texts = "".join(
        f'<text class="small" x="{left + 10}" y="{top + 40 + number * _LINE}">{escape(line)}</text>'
        for number, line in enumerate(box.lines)
    )
    return (
        f'<rect{style} x="{left + 0.5}" y="{top + 0.5}" width="{_WIDTH - 1}" height="{_height(box) - 1}" rx="6"/>'
        f'<text class="title" x="{left + 10}" y="{top + 21}">{escape(box.title)}</text>{texts}'
    )


def _height(box: _Box) -> int:
    return 36 + _LINE * len(box.lines) + 6


def _lines(steps: Iterable[FlowStep]) -> tuple[str, ...]:
    """Return the places of the steps, shortened to what fits."""
    places = list(dict.fromkeys(f"{step.evidence.file.name}:{step.evidence.line} {step.kind}" for step in steps))
    if len(places) > _MAX_LINES:
        places = [*places[: _MAX_LINES - 1], f"and {len(places) - _MAX_LINES + 1} more"]
    return tuple(_cut(place) for place in places)


def _cut(text: str) -> str:
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 1]}…"


def _wrap(text: str) -> tuple[str, ...]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= _CHARACTERS and lines[-1]:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return tuple(_cut(line) for line in lines[: _MAX_LINES + 2])
