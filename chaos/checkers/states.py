"""P6: jobs follow the published state graph, and timestamps never change."""

from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise

import msgspec

from chaos.clients.history import Operation

Graph = Mapping[str, Collection[str]]

TIMESTAMPS = (
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """One update of a job's row, as a trigger recorded it."""

    job: str
    old: str
    new: str
    changed_stamps: list[str] = []  # timestamps that were set before and have changed
    sequence: int = 0  # in the order of the database


def illegal_transitions(transitions: Iterable[Transition], graph: Graph) -> list[Transition]:
    """Return transitions outside the graph, and changes of timestamps."""
    return [
        move
        for move in transitions
        if move.changed_stamps or (move.old != move.new and move.new not in graph[move.old])
    ]


def reachable(graph: Graph) -> dict[str, set[str]]:
    """Return for each state all states that can follow it, including itself."""
    found = {}
    for start in graph:
        seen, front = {start}, [start]
        while front:
            fresh = set(graph[front.pop()]) - seen
            seen |= fresh
            front += fresh
        found[start] = seen
    return found


def contradictory_observations(history: Iterable[Operation], graph: Graph) -> list[str]:
    """Return what clients observed and no legal sequence of states allows.

    Two responses are compared only when the second request was sent after the first response.
    Operations are those of op `watch`; `detail` holds `asked_s`, `status` and the timestamps.
    """
    later = reachable(graph)
    wrong = []
    last: dict[tuple[str, str], Operation] = {}
    for step in history:
        if step.op != "watch" or step.phase != "ok":
            continue
        before = last.get((step.client, step.key))
        if before is not None and before.t <= step.detail["asked_s"]:
            wrong += _contradictions(before, step, later)
        wrong += _disorder(step)
        last[step.client, step.key] = step
    return wrong


def _contradictions(
    before: Operation, after: Operation, later: Mapping[str, set[str]]
) -> list[str]:
    wrong = []
    old, new = before.detail["status"], after.detail["status"]
    if new not in later[old]:
        wrong.append(f"{after.key}: {old} and then {new}")
    for name in TIMESTAMPS:
        was = before.detail.get(name)
        if was is not None and after.detail.get(name) != was:
            wrong.append(f"{after.key}: {name} was {was} and is {after.detail.get(name)}")
    return wrong


_ORDERS = (
    ("created_at", "in_progress_at", "finalizing_at", "completed_at"),
    ("created_at", "in_progress_at", "finalizing_at", "expired_at"),
    ("created_at", "in_progress_at", "finalizing_at", "cancelling_at", "cancelled_at"),
    ("created_at", "failed_at"),
)
"""The timestamps of each legal sequence of states; a job may skip those in the middle."""

_NEEDED = {
    "completed": {"in_progress_at", "finalizing_at", "completed_at"},
    "expired": {"in_progress_at", "finalizing_at", "expired_at"},
    "cancelled": {"cancelling_at", "cancelled_at"},
    "failed": {"failed_at"},
}
"""Timestamps that a terminal job must have."""

_ENDS = frozenset({"completed_at", "expired_at", "cancelled_at", "failed_at"})


def _disorder(step: Operation) -> list[str]:
    """Return timestamps out of order, missing for the state, or of a state not reached."""
    stamps = {name: at for name, at in step.detail.items() if name.endswith("_at") and at}
    wrong = {
        f"{step.key}: {name} before {earlier}"
        for order in _ORDERS
        for earlier, name in pairwise(name for name in order if name in stamps)
        if stamps[name] < stamps[earlier]
    }
    status = step.detail["status"]
    missing = _NEEDED.get(status, set()) - stamps.keys()
    wrong |= {f"{step.key}: {status} without {name}" for name in missing}
    foreign = (stamps.keys() & _ENDS) - {f"{status}_at"}
    return sorted(wrong | {f"{step.key}: {status} with {name}" for name in foreign})
