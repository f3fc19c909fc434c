"""Every bar as a bar, drawn to its own limit: an SVG file of its own, without a plotting library."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from bench.figures import Bar

ROW, TOP, LEFT, PLOT, WIDTH = 26, 64, 470, 420, 1120
LIMIT_AT = 0.5  # of the plot: where each limit stands
GOOD, BAD, NONE = "#2f7d4f", "#b3402c", "#8a8a8a"


def extent(bar: Bar) -> float:
    """The length of a bar as a share of the plot; its limit is in the middle, what is far beyond is cut off."""
    if bar.figure is None:
        return 0.0
    if bar.limit == 0:
        return 0.0 if bar.figure == 0 else 1.0
    return max(0.0, min(1.0, LIMIT_AT * bar.figure / bar.limit))


def draw_bars(bars: Sequence[Bar], conditions: dict[str, Any]) -> str:
    height = TOP + ROW * len(bars) + 40
    limit_x = LEFT + PLOT * LIMIT_AT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        '<text x="16" y="26" font-size="16" font-weight="bold">Broker bench: figures against their limits</text>',
        f'<text x="16" y="46" fill="#555555">{escape(subtitle(conditions))}</text>',
    ]
    for place, bar in enumerate(bars):
        lines += draw_bar(bar, TOP + ROW * place)
    end = TOP + ROW * len(bars)
    lines += [
        f'<line x1="{limit_x:g}" y1="{TOP - 6}" x2="{limit_x:g}" y2="{end}" stroke="#222222" '
        'stroke-width="1.5" stroke-dasharray="4 3"/>',
        f'<text x="{limit_x:g}" y="{end + 18}" text-anchor="middle">limit</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def subtitle(conditions: dict[str, Any]) -> str:
    return (
        f"{conditions.get('scale', '')} run of {conditions.get('started_at', '')}; "
        "each row has its own scale: ≥ is met to the right of the line, ≤ up to it"
    )


def draw_bar(bar: Bar, y: int) -> list[str]:
    colour = NONE if bar.figure is None else GOOD if bar.is_met else BAD
    length = PLOT * extent(bar)
    text = f"{bar.shown_figure}{bar.unit and ' ' + bar.unit} ({bar.rule}) {bar.verdict}"
    return [
        f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(bar.name)}</text>',
        f'<rect x="{LEFT}" y="{y + 3}" width="{length:.1f}" height="{ROW - 9}" fill="{colour}"/>',
        f'<text x="{LEFT + PLOT + 8}" y="{y + 15}" fill="{colour}">{escape(text)}</text>',
    ]
