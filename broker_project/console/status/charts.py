"""Charts as inline SVG, drawn on the server: they print, scale, and need no script and no inline style."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

WIDTH, HEIGHT = 260, 92
BASE = HEIGHT - 16  # room for the labels under the bars
MARK_HALF = 22  # half a label: the first and the last one stay inside


@dataclass(frozen=True)
class Bars:
    """One value a bar, oldest first. ``labels`` are shown on hover; a few of them stand under the axis.

    ``upper`` is a second value a bar, drawn as a stroke above it: what nine of ten stay under.
    """

    title: str
    values: Sequence[float]
    labels: Sequence[str]
    unit: str = ""
    every: int = 6  # each how many bars a label is written
    upper: Sequence[float] = ()
    newest: float = 0.0  # of a chart whose values cannot be added up: the last one there is

    @property
    def total(self) -> float:
        return sum(self.values)

    @property
    def is_empty(self) -> bool:
        return not any(self.values)

    @property
    def headline(self) -> str:
        """The figure beside the title: the sum of counts, the newest of durations."""
        if not self.unit:
            return number(self.total)
        return "–" if self.is_empty else f"{number(self.newest)} {self.unit}"

    @property
    def summary(self) -> str:
        """The chart in a sentence, for those who do not see it."""
        if self.is_empty:
            return _("%(title)s: nothing yet") % {"title": self.title}
        highest = max(range(len(self.values)), key=lambda i: self.values[i])
        if self.unit:
            return _("%(title)s: lately %(newest)s, longest in %(label)s (%(value)s %(unit)s)") % {
                "title": self.title,
                "newest": self.headline,
                "label": self.labels[highest],
                "value": number(self.values[highest]),
                "unit": self.unit,
            }
        return _("%(title)s: %(total)s in all, most in %(label)s (%(value)s)") % {
            "title": self.title,
            "total": number(self.total),
            "label": self.labels[highest],
            "value": number(self.values[highest]),
        }

    def hover(self, i: int) -> str:
        unit = f" {self.unit}" if self.unit else ""
        text = f"{self.labels[i]}: {number(self.values[i])}{unit}"
        if self.upper and self.upper[i]:
            text += " " + _("(nine of ten under %(value)s)") % {"value": f"{number(self.upper[i])}{unit}"}
        return text

    def svg(self) -> SafeString:
        step = WIDTH / max(1, len(self.values))
        top = max([*self.values, *self.upper, 1 if not self.unit else 0.01])
        bars = format_html_join(
            "",
            '<g><title>{}</title><rect class="bar-back" x="{}" y="0" width="{}" height="{}"/>'
            '<rect class="bar" x="{}" y="{}" width="{}" height="{}" rx="1.5"/>{}</g>',
            (
                (
                    self.hover(i),
                    f"{i * step:.1f}",
                    f"{step:.1f}",
                    BASE,
                    f"{i * step + step * 0.14:.1f}",
                    f"{BASE - height(value, top):.1f}",
                    f"{step * 0.72:.1f}",
                    f"{height(value, top):.1f}",
                    self.stroke(i, step, top),
                )
                for i, value in enumerate(self.values)
            ),
        )
        marks = format_html_join(
            "",
            '<text class="mark" x="{}" y="{}">{}</text>',
            (
                (f"{min(WIDTH - MARK_HALF, max(MARK_HALF, i * step + step / 2)):.1f}", HEIGHT - 3, label)
                for i, label in enumerate(self.labels)
                if i % self.every == 0
            ),
        )
        empty = (
            format_html(
                '<text class="nothing" x="{}" y="{}">{}</text>', WIDTH / 2, BASE / 2, _("nothing yet")
            )
            if self.is_empty
            else ""
        )
        return format_html(
            '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">'
            '<line class="axis" x1="0" x2="{}" y1="{}" y2="{}"/>{}{}{}</svg>',
            WIDTH,
            HEIGHT,
            self.summary,
            WIDTH,
            BASE,
            BASE,
            bars,
            marks,
            empty,
        )

    def stroke(self, i: int, step: float, top: float) -> SafeString | str:
        if not self.upper or not self.upper[i]:
            return ""
        y = f"{BASE - height(self.upper[i], top):.1f}"
        return format_html(
            '<path class="upper" d="M{} {}H{}"/>', f"{(i + 0.14) * step:.1f}", y, f"{(i + 0.86) * step:.1f}"
        )


def height(value: float, top: float) -> float:
    """At least a visible sliver for anything above nought."""
    return max(2.0, value / top * (BASE - 6)) if value > 0 else 0.0


def number(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() or value >= 100 else f"{value:.1f}"
