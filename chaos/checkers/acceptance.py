"""P1 and P5: whatever was acknowledged is there and ends, and is answered alike."""

from collections.abc import Iterable, Mapping
from typing import Any

from chaos.clients.history import Operation


def acknowledged_ids(history: Iterable[Operation], op: str = "create") -> dict[str, str]:
    """Return idempotency key to id of each operation that was answered `ok`."""
    return {
        step.key: str(step.detail["id"]) for step in history if step.op == op and step.phase == "ok"
    }


def probed_ids(history: Iterable[Operation]) -> set[str]:
    """Return the ids of what probes created."""
    return {
        str(step.detail["id"])
        for step in history
        if step.op == "probe" and step.phase == "ok" and step.detail.get("id")
    }


def missing_or_unfinished(
    accepted: Iterable[str], states: Mapping[str, str], terminal: Iterable[str]
) -> dict[str, str]:
    """Return each accepted id that is not there, or that has not ended, with what it is."""
    ends = set(terminal)
    found = {job: states.get(job, "missing") for job in accepted}
    return {job: state for job, state in found.items() if state not in ends}


def conflicting_ids(history: Iterable[Operation], op: str = "create") -> dict[str, set[str]]:
    """Return keys for which different ids were answered (P5)."""
    ids: dict[str, set[str]] = {}
    for step in history:
        if step.op == op and step.phase == "ok":
            ids.setdefault(step.key, set()).add(str(step.detail["id"]))
    return {key: answered for key, answered in ids.items() if len(answered) > 1}


def inconsistent_replays(history: Iterable[Operation], op: str = "create") -> dict[str, str]:
    """Return keys whose answers are not one answer and its replays (P5), with what is wrong.

    The answer itself may be missing: it was lost on its way, and its client asked again.
    """
    wrong = {}
    for key, answers in _answers(history, op).items():
        firsts = sum(not answer["replayed"] for answer in answers)
        if firsts > 1:
            wrong[key] = f"{firsts} answers that are no replays"
        elif len({(answer["status"], answer["digest"]) for answer in answers}) > 1:
            wrong[key] = "replays of another status or body"
    return wrong


def lost_responses(history: Iterable[Operation], op: str = "create") -> list[str]:
    """Return keys whose own answer no client ever had: all that came were replays of it."""
    return [
        key
        for key, answers in _answers(history, op).items()
        if all(answer["replayed"] for answer in answers)
    ]


def broken_connections(history: Iterable[Operation], op: str = "create") -> int:
    """Return how many requests were under way when whoever should answer them died."""
    return sum(
        step.op == op
        and step.phase == "info"
        and step.detail.get("failure") not in (None, "ConnectError", "ConnectTimeout")
        for step in history
    )


def _answers(history: Iterable[Operation], op: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for step in history:
        if step.op == op and step.phase == "ok":
            found.setdefault(step.key, []).append(step.detail)
    return found
