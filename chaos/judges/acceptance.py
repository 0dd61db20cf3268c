"""P1: whatever was acknowledged is there and ends."""

from collections.abc import Iterable, Mapping

from chaos.histories import Operation


def acknowledged(history: Iterable[Operation], op: str = "create") -> dict[str, str]:
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


def broken_promises(
    accepted: Iterable[str], states: Mapping[str, str], terminal: Iterable[str]
) -> dict[str, str]:
    """Return each accepted id that is not there, or that has not ended, with what it is."""
    ends = set(terminal)
    found = {job: states.get(job, "missing") for job in accepted}
    return {job: state for job, state in found.items() if state not in ends}


def answers_that_disagree(history: Iterable[Operation], op: str = "create") -> dict[str, set[str]]:
    """Return keys for which different ids were answered (P5)."""
    ids: dict[str, set[str]] = {}
    for step in history:
        if step.op == op and step.phase == "ok":
            ids.setdefault(step.key, set()).add(str(step.detail["id"]))
    return {key: answered for key, answered in ids.items() if len(answered) > 1}
