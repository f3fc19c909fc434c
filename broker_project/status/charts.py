"""Charts as inline SVG, drawn on the server: they print, scale, and need no script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

WIDTH, HEIGHT = 480, 96
BASE = HEIGHT - 16  # room for the labels under the bars
MARK_HALF = 16  # half a label: the first one stays inside


@dataclass(frozen=True)
class Bars:
    """One value a bar, oldest first. ``labels`` are shown on hover; a few of them stand under the axis."""

    title: str
    values: Sequence[float]
    labels: Sequence[str]
    unit: str = ""
    every: int = 6  # each how many bars a label is written

    @property
    def total(self) -> float:
        return sum(self.values)

    @property
    def summary(self) -> str:
        """The chart in a sentence, for those who do not see it."""
        if not any(self.values):
            return _("%(title)s: nothing yet") % {"title": self.title}
        highest = max(range(len(self.values)), key=lambda i: self.values[i])
        return _("%(title)s: %(total)s in all, most in %(label)s (%(value)s)") % {
            "title": self.title,
            "total": number(self.total),
            "label": self.labels[highest],
            "value": number(self.values[highest]),
        }

    def svg(self) -> SafeString:
        count = max(1, len(self.values))
        step = WIDTH / count
        top = max([*self.values, 1])
        bars = format_html_join(
            "",
            '<g><title>{}: {}{}</title><rect class="bar-back" x="{}" y="0" width="{}" height="{}"/>'
            '<rect class="bar" x="{}" y="{}" width="{}" height="{}" rx="1.5"/></g>',
            (
                (
                    label,
                    number(value),
                    f" {self.unit}" if self.unit else "",
                    f"{i * step:.1f}",
                    f"{step:.1f}",
                    BASE,
                    f"{i * step + step * 0.14:.1f}",
                    f"{BASE - height(value, top):.1f}",
                    f"{step * 0.72:.1f}",
                    f"{height(value, top):.1f}",
                )
                for i, (value, label) in enumerate(zip(self.values, self.labels, strict=True))
            ),
        )
        marks = format_html_join(
            "",
            '<text class="mark" x="{}" y="{}">{}</text>',
            (
                (f"{max(MARK_HALF, i * step + step / 2):.1f}", HEIGHT - 3, label)
                for i, label in enumerate(self.labels)
                if i % self.every == 0
            ),
        )
        return format_html(
            '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">'
            '<line class="axis" x1="0" x2="{}" y1="{}" y2="{}"/>{}{}</svg>',
            WIDTH,
            HEIGHT,
            self.summary,
            WIDTH,
            BASE,
            BASE,
            bars,
            marks,
        )


def height(value: float, top: float) -> float:
    """At least a visible sliver for anything above nought."""
    return max(2.0, value / top * (BASE - 6)) if value > 0 else 0.0


def number(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.1f}"
