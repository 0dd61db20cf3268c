"""The report: all numbers as JSON, and a table."""

import math
from collections.abc import Mapping, Sequence

from chaos.reports.measures import OTHER_DRILLS, Measure, Summary, summarise

REQUIRED_ROUNDS = {"P1": (20, "storms"), "P2": (20, "storms"), "P4": (20, "storms")}
REQUIRED_ITEM_TRIALS = {
    "P3": (100, "kills"),
    "P7": (200, "cancelled jobs"),
    "P8": (100, "expired jobs"),
}
"""Trials that a promise requires in all, and the unit of a trial; one run may have fewer.

Measures of the promises in `REQUIRED_ITEM_TRIALS` have many trials a round; others have one.
"""

LOST_LEASE_WRITES = "writes accepted under a lease lost while its holder was stopped"
REQUIRED_LEASE_LOSSES = {"intake": (500, "lost leases")}
"""By role. Only the P9 measures of lost leases count lost leases; the other ones count rounds."""

MEDIAN = "median"
ABORTED_ROUNDS = "rounds that broke off before they were judged"
"""Measures whose names start with this count rounds."""

_HEAD = "| promise | measured | in | worst | pass | trials | failed | 95 % bound | looked at |"


def report_content(facts: Mapping[str, object], measures: Sequence[Measure]) -> dict[str, object]:
    """Return the description of the run, the summaries and every measure."""
    return {**facts, "summaries": summarise(measures), "measures": list(measures)}


def table(measures: Sequence[Measure]) -> str:
    """Return the summaries as a Markdown table."""
    rows = [f"| {' | '.join(_cells(summary))} |" for summary in summarise(measures)]
    return "\n".join([_HEAD, "| --- " * _HEAD.count(" | ") + "| --- |", *rows])


def violation_lines(measures: Sequence[Measure]) -> list[str]:
    """Return a line for each broken promise, with the command that repeats its round."""
    return [
        f"BROKEN {measure.promise} {measure.what}: {measure.value:g} {measure.evidence}\n"
        f"{'':10}  seed {measure.seed}, alone: {measure.rerun}"
        for measure in measures
        if measure.is_violation
    ]


def lease_loss_measure(role: str) -> str:
    """Return the name of the P9 measure that counts the lost leases of a role."""
    return f"{LOST_LEASE_WRITES}: {role}"


def number(value: float) -> str:
    """Format a number; "never" for an infinite one."""
    if not math.isfinite(value):
        return "never"
    return f"{value:,.0f}" if value == int(value) else f"{value:.2f}"


def _cells(summary: Summary) -> list[str]:
    unit = f" {summary.unit}" if summary.unit else ""
    relation = {"<=": "≤", ">=": "≥", "goal": "goal ≤", "report": ""}[summary.relation]
    goal = "reported" if summary.relation == "report" else f"{relation} {number(summary.limit)}"
    return [
        summary.promise,
        summary.what,
        summary.part,
        number(summary.worst) + unit,
        goal,
        _trials(summary),
        str(summary.failures),
        _bound(summary),
        f"{summary.size:,}",
    ]


def _trials(summary: Summary) -> str:
    text = str(summary.trials)
    if required := _required_trials(summary):
        text += f" of {required[0]} {required[1]}"
    if summary.rounds == summary.trials:
        return text
    return f"{text}, {summary.rounds} round{'s' * (summary.rounds > 1)}"


def _required_trials(summary: Summary) -> tuple[int, str] | None:
    """Return the required number of trials and their unit, if any is required."""
    if summary.what.startswith(LOST_LEASE_WRITES):
        required = {lease_loss_measure(role): n for role, n in REQUIRED_LEASE_LOSSES.items()}
        return required.get(summary.what)
    is_other = summary.relation == "report" or summary.part == OTHER_DRILLS
    if is_other or summary.what.startswith((MEDIAN, ABORTED_ROUNDS)):
        return None
    if summary.promise in REQUIRED_ITEM_TRIALS and summary.trials > summary.rounds:
        return REQUIRED_ITEM_TRIALS[summary.promise]
    return REQUIRED_ROUNDS.get(summary.promise)


def _bound(summary: Summary) -> str:
    if summary.relation == "report":
        return ""
    by_round = f" ({100 * summary.round_bound:.1f} % by round)"
    return f"{100 * summary.bound:.1f} %" + by_round * (summary.rounds < summary.trials)
