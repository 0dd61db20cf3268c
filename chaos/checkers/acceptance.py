"""P1 and P5: every acknowledged object exists and ends, and a key has one response."""

from collections.abc import Iterable, Mapping
from typing import Any

from chaos.clients.history import Operation


def acknowledged_ids(history: Iterable[Operation], op: str = "create") -> dict[str, str]:
    """Return idempotency key to id of each operation that was answered `ok`."""
    return {
        step.key: str(step.detail["id"]) for step in history if step.op == op and step.phase == "ok"
    }


def probed_ids(history: Iterable[Operation]) -> set[str]:
    """Return the ids of the objects that probes created."""
    return {
        str(step.detail["id"])
        for step in history
        if step.op == "probe" and step.phase == "ok" and step.detail.get("id")
    }


def missing_or_unfinished(
    accepted: Iterable[str], states: Mapping[str, str], terminal: Iterable[str]
) -> dict[str, str]:
    """Return each accepted id that is missing or not terminal, with its state."""
    ends = set(terminal)
    found = {job: states.get(job, "missing") for job in accepted}
    return {job: state for job, state in found.items() if state not in ends}


def conflicting_ids(history: Iterable[Operation], op: str = "create") -> dict[str, str]:
    """Return the keys for which different ids were returned (P5), with these ids."""
    ids = {
        key: sorted({str(response["id"]) for response in responses})
        for key, responses in _responses(history, op).items()
    }
    return {key: " ".join(found) for key, found in ids.items() if len(found) > 1}


def inconsistent_replays(history: Iterable[Operation], op: str = "create") -> dict[str, str]:
    """Return the keys with anything but one response and its replays (P5), with the reason.

    The original response may be missing: it was lost, and its client sent the request again.
    """
    wrong = {}
    for key, responses in _responses(history, op).items():
        firsts = sum(not response["replayed"] for response in responses)
        if firsts > 1:
            wrong[key] = f"{firsts} original responses"
        elif len({(response["status"], response["digest"]) for response in responses}) > 1:
            wrong[key] = "replays of another status or body"
    return wrong


def lost_responses(history: Iterable[Operation], op: str = "create") -> list[str]:
    """Return the keys whose original response reached no client: all that came are replays."""
    return [
        key
        for key, responses in _responses(history, op).items()
        if all(response["replayed"] for response in responses)
    ]


def broken_connections(history: Iterable[Operation], op: str = "create") -> int:
    """Return how many requests were in flight when their server died."""
    return sum(
        step.op == op
        and step.phase == "info"
        and step.detail.get("failure") not in (None, "ConnectError", "ConnectTimeout")
        for step in history
    )


def _responses(history: Iterable[Operation], op: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for step in history:
        if step.op == op and step.phase == "ok":
            found.setdefault(step.key, []).append(step.detail)
    return found
