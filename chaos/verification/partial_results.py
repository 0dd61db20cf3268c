"""P7 and P8: the output file of a stopped job holds the items that had finished, and no others."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from chaos.checkers.executions import Answer, Start, finished_before, output_mismatches
from chaos.drills.context import DrillContext
from chaos.reports.measures import Measure, violations

COMMIT_S_MAX: Final = 2.0
"""Time from an answer until replica and writer have committed it, with a large margin.

A younger item may count as unfinished when its job ends.
"""

Event = TypeVar("Event", Start, Answer)


def check_partial_results(
    context: DrillContext,
    promise: str,
    group: str,
    closed_s: Mapping[int, float],
    outputs: Mapping[int, Sequence[Mapping[str, Any]]],
    deaths_s: Sequence[float] = (),
) -> Measure:
    """Compare output files with the answers that came before each job was closed."""
    by_job = group_by_job(context.recording().answers(group))
    checked = 0
    wrong: dict[str, str] = {}
    for number, moment_s in closed_s.items():
        answers = by_job[number]
        finished = finished_before(answers, moment_s, deaths_s, commit_s=COMMIT_S_MAX)
        output = {f"{group} {number} {line['custom_id'][5:]}" for line in outputs[number]}
        checked += len(finished)
        wrong |= output_mismatches(finished, {answer.item for answer in answers}, output)
    if not checked and not wrong:
        context.note(f"no item was answered {COMMIT_S_MAX:g} s before its job's end")
    what = "finished items that are not in the output file, or others that are"
    return violations(promise, what, wrong, size=checked)


def group_by_job(events: Iterable[Event]) -> defaultdict[int, list[Event]]:
    """Return events by the job's number, the second word of an item's text."""
    found: defaultdict[int, list[Event]] = defaultdict(list)
    for event in events:
        found[int(event.item.split(" ")[1])].append(event)
    return found
