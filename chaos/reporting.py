"""The report: every number as JSON, and a table for readers."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from chaos.measures import Measure, Summary, summarise

WANTED = {"P1": 20, "P2": 20, "P3": 100, "P4": 20, "P7": 200, "P8": 100}
"""Trials that a promise asks for in all, where it asks for a number; a run may have fewer."""

LOST = "writes accepted under a lease lost while its holder was stopped"
LOST_WANTED = 500
"""Of P9 only this line counts lost leases; its others count drills."""

MEDIAN = "median"
"""A line that begins so is not one for each thing that is tried."""

_HEAD = ("promise", "measured", "worst", "pass", "trials", "failed", "95 % bound", "looked at")


def write_json(path: Path, facts: Mapping[str, object], measures: Sequence[Measure]) -> None:
    """Write the machine, every measure and the summaries."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {**facts, "summaries": summarise(measures), "measures": list(measures)}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content)) + b"\n")


def table(measures: Sequence[Measure]) -> str:
    """Return the summaries as a table of Markdown."""
    lines = [_line(_HEAD), _line(["---"] * len(_HEAD))]
    lines += [_line(_cells(summary)) for summary in summarise(measures)]
    return "\n".join(lines)


def number(value: float) -> str:
    """Return a figure without digits that mean nothing."""
    if value == float("inf"):
        return "never"
    return f"{value:,.0f}" if value == int(value) else f"{value:.2f}"


def _cells(summary: Summary) -> list[str]:
    unit = f" {summary.unit}" if summary.unit else ""
    relation = {"<=": "≤", ">=": "≥", "goal": "goal ≤", "report": ""}[summary.relation]
    goal = "reported" if summary.relation == "report" else f"{relation} {number(summary.limit)}"
    bound = "" if summary.relation == "report" else f"{100 * summary.bound:.1f} %"
    return [
        summary.promise,
        summary.what,
        number(summary.worst) + unit,
        goal,
        _trials(summary),
        str(summary.failures),
        bound,
        f"{summary.size:,}",
    ]


def _trials(summary: Summary) -> str:
    wanted = LOST_WANTED if summary.what == LOST else WANTED.get(summary.promise)
    is_counted = summary.relation != "report" and not summary.what.startswith(MEDIAN)
    if wanted is None or not is_counted:
        return str(summary.trials)
    return f"{summary.trials} of {wanted}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
