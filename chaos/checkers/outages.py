"""P10 and P11: duration and status of requests during an outage."""

import math
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

    @property
    def is_good(self) -> bool:
        """Whether the response has a status of success."""
        return 200 <= self.status < 300

    def __str__(self) -> str:
        return f"{self.status} after {self.took_s:.1f} s"


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
        if not probe.is_good
        and not (probe.status in proper and probe.retry_after and probe.enveloped)
    ]


def seconds_to_response(seen: Sequence[Probe], since_s: float, *, good: bool) -> float:
    """Return seconds from `since_s` to the first good (or bad) response; infinite without one.

    A good response counts when its request was sent after `since_s`, a bad one when it came after
    it.
    """
    times = [
        probe.answered_s - since_s
        for probe in seen
        if (probe.asked_s if good else probe.answered_s) >= since_s and probe.is_good == good
    ]
    return min(times, default=math.inf)


def was_available(seen: Sequence[Probe], at_s: float) -> bool:
    """Return whether the last response before a moment was good; False without one."""
    before = [probe for probe in seen if probe.answered_s < at_s]
    return bool(before) and max(before, key=lambda probe: probe.answered_s).is_good
