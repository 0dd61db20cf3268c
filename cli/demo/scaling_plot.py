"""Plots of scaling samples: an SVG file, and lines for a terminal. Pure."""

from collections.abc import Sequence
from html import escape
from typing import Final

from cli.demo.scaling_samples import ScalingSample, Series, resample

_PANELS: Final[tuple[tuple[str, str, Series], ...]] = (
    ("replicas", "#1f77b4", lambda one: one.replicas),
    ("need, in replicas", "#d62728", lambda one: one.need),
    ("waiting tokens", "#2ca02c", lambda one: one.waiting_tokens),
)
_WIDTH, _LEFT, _RIGHT, _TOP = 800, 70, 20, 40
_HEIGHT, _GAP = 110, 40  # of a panel, and below it
_TICKS: Final = 6
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_LABEL_CHARS: Final = 18


def svg_plot(samples: Sequence[ScalingSample], start_s: float, end_s: float, *, title: str) -> str:
    """Return an SVG document with a panel for each series, from `start_s` to `end_s`."""
    height = _TOP + len(_PANELS) * (_HEIGHT + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="15">{escape(title)}</text>',
    ]
    for number, (label, colour, value_of) in enumerate(_PANELS):
        top = _TOP + number * (_HEIGHT + _GAP)
        parts += _panel(samples, value_of, (start_s, end_s), (label, colour, top))
    return "\n".join((*parts, "</svg>", ""))


def text_plot(
    samples: Sequence[ScalingSample], start_s: float, end_s: float, *, width: int
) -> list[str]:
    """Return a line of block characters for each series, with its highest value, and an axis."""
    lines = []
    for label, _, value_of in _PANELS:
        values = resample(samples, value_of, start_s, end_s, width)
        highest = max(values)
        blocks = "".join(_BLOCKS[_block(value, highest)] for value in values)
        lines.append(f"{label:{_LABEL_CHARS}}│{blocks}│ max {highest:,.4g}")
    seconds = f"{end_s - start_s:.0f} s"
    lines.append(f"{'':{_LABEL_CHARS}}│0{seconds:>{width - 1}}│")
    return lines


def _block(value: float, highest: float) -> int:
    """Return a block of at least one eighth for each value above 0."""
    if value <= 0 or highest <= 0:
        return 0
    return max(1, round(value / highest * (len(_BLOCKS) - 1)))


def _panel(
    samples: Sequence[ScalingSample],
    value_of: Series,
    span_s: tuple[float, float],
    look: tuple[str, str, int],
) -> list[str]:
    (start_s, end_s), (label, colour, top) = span_s, look
    shown = [one for one in samples if start_s <= one.at_s <= end_s]
    before = [value_of(one) for one in samples if one.at_s < start_s][-1:]
    highest = max([*map(value_of, shown), *before, 1.0])
    bottom, right = top + _HEIGHT, _WIDTH - _RIGHT

    def x(at_s: float) -> float:
        return _LEFT + (at_s - start_s) / (end_s - start_s) * (right - _LEFT)

    def y(value: float) -> float:
        return bottom - value / highest * _HEIGHT

    last = before[0] if before else 0.0
    path = [f"M{_LEFT:.1f},{y(last):.1f}"]
    for one in shown:
        path.append(f"H{x(one.at_s):.1f}V{y(value_of(one)):.1f}")
    path.append(f"H{right:.1f}")
    lines = [
        f'<path d="M{_LEFT},{top}V{bottom}H{right}" fill="none" stroke="#888"/>',
        f'<path d="{"".join(path)}" fill="none" stroke="{colour}" stroke-width="2"/>',
        f'<text x="{_LEFT}" y="{top - 6}" fill="{colour}">{escape(label)}</text>',
        f'<text x="{_LEFT - 6}" y="{top + 4}" text-anchor="end">{highest:,.4g}</text>',
        f'<text x="{_LEFT - 6}" y="{bottom}" text-anchor="end">0</text>',
    ]
    for number in range(_TICKS + 1):
        at_s = (end_s - start_s) * number / _TICKS
        lines.append(
            f'<text x="{x(start_s + at_s):.1f}" y="{bottom + 15}" text-anchor="middle">'
            f"{at_s:.0f} s</text>"
        )
    return lines
