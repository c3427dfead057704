"""Draw bars and spreads as SVG, small and without any package."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 720, 360, 70, 40, 60
_INK, _BAR, _SPREAD = "#333", "#4878a8", "#a8bed4"


@dataclass(frozen=True)
class Bar:
    """A bar of a height with its label."""

    label: str
    value: float


@dataclass(frozen=True)
class Spread:
    """A stroke from `low` to `high` with a mark at `middle`."""

    label: str
    low: float
    middle: float
    high: float


def draw_bars(title: str, bars: Sequence[Bar], axis: str) -> str:
    """Draw bars that stand on zero."""
    top = max((bar.value for bar in bars), default=0) or 1
    step = (_WIDTH - _LEFT - 20) / max(1, len(bars))
    parts = []
    for number, bar in enumerate(bars):
        x, height = _LEFT + step * number, (_HEIGHT - _TOP - _BOTTOM) * bar.value / top
        y = _HEIGHT - _BOTTOM - height
        parts.append(f'<rect x="{x + step * 0.1:.1f}" y="{y:.1f}" width="{step * 0.8:.1f}" height="{height:.1f}" '
                     f'fill="{_BAR}"><title>{escape(bar.label)}: {bar.value:,.0f}</title></rect>')  # fmt: skip
        parts.append(_label(x + step / 2, bar.label))
    parts += [_tick(_HEIGHT - _BOTTOM, "0"), _tick(_TOP, f"{top:,.0f}")]
    return _frame(title, axis, parts)


def draw_spreads(title: str, spreads: Sequence[Spread], axis: str) -> str:
    """Draw spreads on a logarithmic axis; what is not above zero is left out."""
    shown = [spread for spread in spreads if spread.low > 0]
    bottom = math.floor(math.log10(min((spread.low for spread in shown), default=1)))
    top = max(bottom + 1, math.ceil(math.log10(max((spread.high for spread in shown), default=10))))

    def place(value: float) -> float:
        share = (math.log10(value) - bottom) / (top - bottom)
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share

    step = (_WIDTH - _LEFT - 20) / max(1, len(shown))
    parts = [_tick(place(10.0**power), f"1e{power}") for power in range(bottom, top + 1)]
    for number, spread in enumerate(shown):
        x = _LEFT + step * (number + 0.5)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{place(spread.low):.1f}" y2="{place(spread.high):.1f}" '
                     f'stroke="{_SPREAD}" stroke-width="{min(24.0, step * 0.5):.1f}"><title>{escape(spread.label)}: '
                     f'{spread.low:.4g} to {spread.high:.4g}</title></line>')  # fmt: skip
        parts.append(f'<circle cx="{x:.1f}" cy="{place(spread.middle):.1f}" r="4" fill="{_BAR}"/>')
        parts.append(_label(x, spread.label))
    return _frame(title, axis, parts)


def _label(x: float, text: str) -> str:
    y = _HEIGHT - _BOTTOM + 16
    return (
        f'<text x="{x:.1f}" y="{y}" font-size="11" text-anchor="end" fill="{_INK}" '
        f'transform="rotate(-30 {x:.1f} {y})">{escape(text)}</text>'
    )


def _tick(y: float, text: str) -> str:
    return (
        f'<line x1="{_LEFT - 4}" x2="{_WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" font-size="11" text-anchor="end" fill="{_INK}">{escape(text)}</text>'
    )


def _frame(title: str, axis: str, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-family="sans-serif"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="{_LEFT}" y="22" font-size="15" fill="{_INK}">{escape(title)}</text>'
        f'<text x="14" y="{_HEIGHT / 2}" font-size="11" text-anchor="middle" fill="{_INK}" '
        f'transform="rotate(-90 14 {_HEIGHT / 2})">{escape(axis)}</text>'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"
