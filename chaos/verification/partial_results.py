"""P7 and P8: what had finished when a job was closed is in its output file, and nothing else is."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from chaos.checkers.executions import Answer, Start, finished_before, output_mismatches
from chaos.drills.context import DrillContext
from chaos.reports.measures import Measure

COMMIT_S_MAX: Final = 2.0
"""From an answer until replica and writer have committed it, many times what both take; an item
whose answer is younger when its job ends may count as unfinished."""


Event = TypeVar("Event", Start, Answer)


def check_partial_results(
    context: DrillContext,
    promise: str,
    group: str,
    closed_s: Mapping[int, float],
    outputs: Mapping[int, Sequence[Mapping[str, Any]]],
    deaths_s: Sequence[float] = (),
) -> Measure:
    """What the upstream answered in time is in the output file, and nothing else is."""
    by_job = group_by_job(context.recording().answers(group))
    looked_at = 0
    wrong: list[tuple[str, str]] = []
    for number, moment_s in closed_s.items():
        answers = by_job[number]
        finished = finished_before(answers, moment_s, deaths_s, commit_s=COMMIT_S_MAX)
        output = {f"{group} {number} {line['custom_id'][5:]}" for line in outputs[number]}
        looked_at += len(finished)
        wrong += output_mismatches(finished, {answer.item for answer in answers}, output).items()
    if not looked_at and not wrong:
        context.note(f"no item was answered {COMMIT_S_MAX:g} s before its job's end")
    return Measure(
        promise=promise,
        what="finished items that are not in the output file, or others that are",
        value=len(wrong),
        size=looked_at,
        evidence="; ".join(f"{item}: {told}" for item, told in wrong[:5]),
    )


def group_by_job(events: Iterable[Event]) -> defaultdict[int, list[Event]]:
    """Return what happened to each job of a group, by the number in the texts of its items."""
    found: defaultdict[int, list[Event]] = defaultdict(list)
    for event in events:
        found[int(event.item.split(" ")[1])].append(event)
    return found
