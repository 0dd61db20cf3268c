"""P3, P7 and P8: what began, how often, and when, as an upstream that notes everything saw it."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple


class Start(NamedTuple):
    """An execution of an item began."""

    at_s: float
    item: str


class Answer(NamedTuple):
    """An execution of an item was answered."""

    at_s: float
    item: str


def reexecutions_after(starts: Iterable[Start], moments_s: Sequence[float]) -> list[int]:
    """Return how many executions were not the first of their item, by the moment they came after.

    The moments are in order; each answers for what began until the next one.
    """
    seen: set[str] = set()
    counts = [0] * len(moments_s)
    for start in sorted(starts):
        last = bisect_right(moments_s, start.at_s) - 1
        if start.item in seen:
            counts[max(last, 0)] += 1  # before all: nobody's, but none is lost from the sum
        seen.add(start.item)
    return counts


def started_after(starts: Iterable[Start], moment_s: float) -> list[Start]:
    """Return what began later than a moment at which nothing may begin any more."""
    return [start for start in starts if start.at_s > moment_s]


def seconds_to_last_start(starts: Sequence[Start], since_s: float) -> float:
    """Return seconds from a moment to the last beginning; negative when all lie before it."""
    return max((start.at_s - since_s for start in starts), default=0.0)


def finished_before(
    answers: Iterable[Answer], moment_s: float, deaths_s: Sequence[float], *, commit_s: float
) -> set[str]:
    """Return the items that a commit of every role lies behind before `moment_s`.

    What was answered shortly before a role died may be lost with it, and has not finished.
    """
    return {
        answer.item
        for answer in answers
        if answer.at_s + commit_s < moment_s
        and not any(answer.at_s <= death_s <= answer.at_s + commit_s for death_s in deaths_s)
    }


def output_mismatches(finished: Set[str], answered: Set[str], output: Set[str]) -> dict[str, str]:
    """Return items that an output file lacks though they had finished, or has though none ran."""
    lacking = dict.fromkeys(sorted(finished - output), "finished, and not in the output")
    return lacking | dict.fromkeys(sorted(output - answered), "in the output, and never answered")
