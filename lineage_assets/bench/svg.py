"""Plots of the bench as SVG text: points over time, curves, bars with their intervals.

Belongs here: axes and marks. Does not belong here: what is plotted (report.py).

They are read on light and dark pages: a white ground, two colours that also differ in lightness, every value labelled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 720, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 40, 48
COLOURS = ("#0b5394", "#e69138", "#38761d", "#990000")
_FONT = 'font-family="sans-serif" font-size="12"'


@dataclass(frozen=True, slots=True)
class Bar:
    """A value, with its interval where it is known."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Scale:
    """Values `[0, top]` (or `[bottom, top]`) on pixels."""

    bottom: float
    top: float
    from_px: float
    to_px: float

    def __call__(self, value: float) -> float:
        share = (value - self.bottom) / (self.top - self.bottom or 1.0)
        return self.from_px + share * (self.to_px - self.from_px)

    def ticks(self, about: int = 5) -> list[float]:
        """Round values from bottom to top.

        >>> Scale(0, 4700, 0, 1).ticks()
        [0.0, 1000.0, 2000.0, 3000.0, 4000.0]
        """
        rough = (self.top - self.bottom) / about or 1.0
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * nice for nice in (1, 2, 5, 10) if power * nice >= rough)
        first = math.ceil(self.bottom / step - 1e-9)
        return [step * n for n in range(first, math.floor(self.top / step + 1e-9) + 1)]


def points(
    title: str, series: Mapping[str, Sequence[tuple[float, float]]], x_label: str, y_label: str, *, line: bool = False
) -> str:
    """Series of (x, y) as points, or as lines."""
    every = [point for some in series.values() for point in some] or [(0.0, 0.0)]
    x = Scale(min(p[0] for p in every), max(p[0] for p in every) or 1.0, LEFT, WIDTH - RIGHT)
    y = Scale(0.0, max(p[1] for p in every) * 1.05 or 1.0, HEIGHT - BOTTOM, TOP)
    marks = [*_y_axis(y, y_label), *_x_axis(x, x_label)]
    for number, (name, some) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        if line:
            path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in some)
            marks.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        else:
            marks += [f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="1.6" fill="{colour}"/>' for a, b in some]
        marks.append(_text(WIDTH - RIGHT - 4, TOP + 4 + 16 * number, name, anchor="end", colour=colour))
    return _document(title, marks)


def bars(title: str, values: Sequence[Bar], label: str, *, digits: int = 1) -> str:
    """Horizontal bars, each with its value and, as a thin line, its interval."""
    height = TOP + BOTTOM + 30 * len(values)
    ends = [end for bar in values for end in (bar.value, bar.low, bar.high) if end is not None] or [1.0]
    x = Scale(min(0.0, *ends), max(0.0, *ends) * 1.15 or 1.0, LEFT + 130, WIDTH - RIGHT)
    marks = _x_axis(x, label, height)
    for number, bar in enumerate(values):
        top = TOP + 30 * number
        start, end = sorted((x(0.0), x(bar.value)))
        marks.append(_text(LEFT + 122, top + 15, bar.label, anchor="end"))
        marks.append(
            f'<rect x="{start:.1f}" y="{top}" width="{end - start:.1f}" height="20" fill="{COLOURS[0]}" fill-opacity="0.75"/>'
        )
        furthest = x(max(bar.value, bar.high or bar.value, 0.0))
        if bar.low is not None and bar.high is not None:
            marks.append(
                f'<line x1="{x(bar.low):.1f}" x2="{x(bar.high):.1f}" y1="{top + 10}" y2="{top + 10}" stroke="#000"/>'
            )
        marks.append(_text(furthest + 6, top + 15, f"{bar.value:,.{digits}f}"))
    return _document(title, marks, height)


def _y_axis(y: Scale, label: str) -> list[str]:
    marks = [_text(14, (TOP + HEIGHT - BOTTOM) / 2, label, anchor="middle", turned=True)]
    for tick in y.ticks():
        marks.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#ddd"/>')
        marks.append(_text(LEFT - 6, y(tick) + 4, f"{tick:,.10g}", anchor="end"))
    return marks


def _x_axis(x: Scale, label: str, height: int = HEIGHT) -> list[str]:
    base = height - BOTTOM
    marks = [_text((x.from_px + x.to_px) / 2, height - 10, label, anchor="middle")]
    marks.append(f'<line x1="{x.from_px}" x2="{x.to_px}" y1="{base}" y2="{base}" stroke="#666"/>')
    for tick in x.ticks():
        marks.append(f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{base}" y2="{base + 4}" stroke="#666"/>')
        marks.append(_text(x(tick), base + 17, f"{tick:,.10g}", anchor="middle"))
    return marks


def _text(x: float, y: float, text: str, *, anchor: str = "start", colour: str = "#222", turned: bool = False) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" {_FONT}{turn}>{escape(text)}</text>'


def _document(title: str, marks: Sequence[str], height: int = HEIGHT) -> str:
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    head = f'<text x="{LEFT}" y="22" font-family="sans-serif" font-size="14" fill="#222">{escape(title)}</text>'
    ground = f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>'
    name = f"<title>{escape(title)}</title>"
    return "\n".join(
        [f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>', name, ground, head, *marks, "</svg>", ""]
    )
