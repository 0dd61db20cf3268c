"""Progress on stderr, the table on stdout and the JSON report."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.runs import Report, Row
from benchmarks.statistics.intervals import Interval

_HEAD = ("", "unit", "ours", "peer", "ratio or spread", "goal")


def table(reports: Sequence[Report]) -> str:
    """Return the rows of all reports as aligned columns."""
    lines: list[tuple[str, ...]] = []
    for report in reports:
        lines += [(report.name, *_HEAD[1:]), *map(_cells, report.rows), ()]
    widths = [max((len(line[i]) for line in lines if line), default=0) for i in range(len(_HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False)).rstrip()
        for line in lines
    )


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write a report as indented JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content)) + b"\n")


def progress_printer(prefix: str = "") -> Callable[[str], None]:
    """Return a function that prints a line with the seconds since this call."""
    started_s = time.monotonic()

    def note(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - started_s:7.1f} s  {prefix}{text}\n")
        sys.stderr.flush()

    return note


def number(value: float) -> str:
    """Format a number with about three significant digits."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _cells(row: Row) -> tuple[str, ...]:
    peer = "" if row.peer is None else number(row.peer)
    found = row.ratio or row.spread
    bounds = "" if found is None else _bounds(found, is_ratio=row.ratio is not None)
    return (f"  {row.metric}", row.unit, number(row.ours), peer, bounds, row.goal)


def _bounds(interval: Interval, *, is_ratio: bool) -> str:
    is_range = interval.coverage is None
    coverage = f"range of {interval.count}" if is_range else f"{interval.coverage:.0%}"
    bounds = f"[{number(interval.low)}, {number(interval.high)}] {coverage}"
    return f"× {number(interval.median)} {bounds}" if is_ratio else bounds
