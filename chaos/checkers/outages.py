"""P10 and P11: duration and status of requests during an outage."""

from collections.abc import Collection, Iterable, Sequence

import msgspec

from chaos.clients.history import Operation


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a steady sequence."""

    asked_s: float
    took_s: float
    status: int  # 0: no response
    retry_after: bool = False
    enveloped: bool = True  # an error came in the API's error format

    @property
    def answered_s(self) -> float:
        """When the response came."""
        return self.asked_s + self.took_s


def probes(history: Iterable[Operation], path: str) -> list[Probe]:
    """Return the probes of one name in the order of their responses."""
    return [
        Probe(
            asked_s=step.detail["asked_s"],
            took_s=step.t - step.detail["asked_s"],
            status=step.detail["status"],
            retry_after=step.detail.get("retry_after", False),
            enveloped=step.detail.get("enveloped", True),
        )
        for step in history
        if step.op == "probe" and step.key == path and step.phase != "invoke"
    ]


def longest_response_s(seen: Sequence[Probe]) -> float:
    """Return the longest duration of a request."""
    return max((probe.took_s for probe in seen), default=0.0)


def improper_refusals(seen: Sequence[Probe], proper: Collection[int] = (503,)) -> list[Probe]:
    """Return refusals without a `proper` status, Retry-After, or the API's error format."""
    return [
        probe
        for probe in seen
        if not 200 <= probe.status < 300
        and not (probe.status in proper and probe.retry_after and probe.enveloped)
    ]


def seconds_to_response(seen: Sequence[Probe], since_s: float, *, good: bool) -> float | None:
    """Return seconds from `since_s` to the first good (or bad) response, or None.

    A good response counts when its request was sent after `since_s`, a bad one when it came after
    it.
    """
    times = [
        probe.answered_s - since_s
        for probe in seen
        if (probe.asked_s if good else probe.answered_s) >= since_s
        and (200 <= probe.status < 300) == good
    ]
    return min(times, default=None)


def was_available(seen: Sequence[Probe], at_s: float) -> bool:
    """Return whether the last response before a moment was good; False without one."""
    before = [probe for probe in seen if probe.answered_s < at_s]
    return bool(before) and 200 <= max(before, key=lambda p: p.answered_s).status < 300


def describe_probes(seen: Sequence[Probe]) -> str:
    """Return the first five for a report."""
    return "; ".join(f"{probe.status} after {probe.took_s:.1f} s" for probe in seen[:5])
