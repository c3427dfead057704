"""Draw the way of a state through one model class as an SVG: boxes from the setter to the answer, losses below."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape

from auxtap.tracer.report.trace_report import Flow, FlowStep

_WIDTH, _GAP, _TOP, _LINE = 208, 30, 6, 17
_MAX_LINES = 6
_CHARACTERS = 28
_COLUMNS = 4

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
    """Return one diagram: a box for each part of the way, and dashed arrows to where states are lost or stopped."""
    steps = [*flow.steps, *(delivery if flow.steps else ())]
    boxes = [_Box("entry", tuple(_cut(link.name) for link in flow.links), False)]
    for title, kinds in _BOXES:
        lines = _lines(step for step in steps if step.kind in kinds)
        boxes.append(_Box(title, lines or ("nothing",), not lines))
    losses = [step for step in steps if step.kind == "exit" and "drops" in step.text]
    skips = [step for step in steps if step.kind == "skip"]
    ends = [_Box("lost: other stages", _lines(losses), True)] if losses else []
    ends += [_Box("skipped: never captured", _lines(skips), True)] if skips else []
    ends += [_Box("broken", _wrap(reason), True) for reason in flow.breaks]
    upper, lower = boxes[:_COLUMNS], boxes[_COLUMNS:]
    second = _TOP + max(_height(box) for box in upper) + _GAP + 10
    right = _COLUMNS * (_WIDTH + _GAP)
    parts = [*_draw_row(upper, _TOP), _turn(upper[-1], second), *_draw_row(lower, second)]
    top = _TOP
    for box in ends:
        parts.append(f'<path class="bad" d="M{right - _GAP} {top + 22} H{right - 2}" marker-end="url(#tip)"/>')
        parts.append(_draw(box, right, top))
        top += _height(box) + 10
    width = right + (_WIDTH if ends else -_GAP)
    height = max(second + max(_height(box) for box in lower), top) + 6
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{escape(f"flow of {flow.model}")}">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z"/></marker></defs>{"".join(parts)}</svg>'
    )


def _draw_row(boxes: Iterable[_Box], top: int) -> Iterator[str]:
    for number, box in enumerate(boxes):
        left = number * (_WIDTH + _GAP)
        if number:
            style = ' class="bad"' if box.is_bad else ""
            yield f'<path{style} d="M{left - _GAP} {top + 22} H{left - 2}" marker-end="url(#tip)"/>'
        yield _draw(box, left, top)


def _turn(last: _Box, second: int) -> str:
    """Return the arrow from the end of the first row to the beginning of the second."""
    middle = (_COLUMNS - 1) * (_WIDTH + _GAP) + _WIDTH // 2
    path = f"M{middle} {_TOP + _height(last)} V{second - 18} H{_WIDTH // 2} V{second - 2}"
    return f'<path d="{path}" marker-end="url(#tip)"/>'


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
