"""P3, P7 and P8: which executions started, how often and when, as `RecordingUpstream` saw them."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple


class ItemEvent(NamedTuple):
    """The start or the answer of an item's execution."""

    at_s: float
    item: str


def group_by_job(events: Iterable[ItemEvent]) -> defaultdict[int, list[ItemEvent]]:
    """Return events by the job's number, the second word of an item's text."""
    found: defaultdict[int, list[ItemEvent]] = defaultdict(list)
    for event in events:
        found[int(event.item.split(" ")[1])].append(event)
    return found


def reexecutions_after(starts: Iterable[ItemEvent], moments_s: Sequence[float]) -> list[int]:
    """Return how many repeated executions started after each moment, up to the next one.

    `moments_s` are in order. An execution before all of them counts for the first.
    """
    seen: set[str] = set()
    counts = [0] * len(moments_s)
    for start in sorted(starts):
        last = bisect_right(moments_s, start.at_s) - 1
        if start.item in seen:
            counts[max(last, 0)] += 1
        seen.add(start.item)
    return counts


def started_after(starts: Iterable[ItemEvent], moment_s: float) -> list[ItemEvent]:
    """Return the executions that started after a moment."""
    return [start for start in starts if start.at_s > moment_s]


def seconds_to_last_start(starts: Sequence[ItemEvent], since_s: float) -> float:
    """Return seconds from a moment to the last start; negative when all are earlier."""
    return max((start.at_s - since_s for start in starts), default=0.0)


def finished_before(
    answers: Iterable[ItemEvent], moment_s: float, deaths_s: Sequence[float], *, commit_s: float
) -> set[str]:
    """Return the items answered at least `commit_s` before `moment_s`.

    An answer shortly before a process died may be lost with it, so it does not count.
    """
    return {
        answer.item
        for answer in answers
        if answer.at_s + commit_s < moment_s
        and not any(answer.at_s <= death_s <= answer.at_s + commit_s for death_s in deaths_s)
    }


def output_mismatches(finished: Set[str], answered: Set[str], output: Set[str]) -> dict[str, str]:
    """Return finished items missing from an output file, and items in it that never ran."""
    lacking = dict.fromkeys(sorted(finished - output), "finished, but not in the output")
    return lacking | dict.fromkeys(sorted(output - answered), "in the output, but never answered")
