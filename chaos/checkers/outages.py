"""P10, P11 and A12: requests during an outage, and the time until the rate recovers."""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

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


RATE_MIN: Final = 20.0
"""Items a second; at a lower rate a standstill cannot be told from noise."""


class Sample(NamedTuple):
    """A counter's value at a moment."""

    at_s: float
    total: int


def steady_rate(samples: Sequence[Sample], until_s: float, *, over_s: float) -> float | None:
    """Return the rate over the `over_s` before `until_s`, or None when it stalled there.

    It stalled when one half of that time has less than `RATE_MIN`.
    """
    middle_s = until_s - over_s / 2
    halves = rate(samples, until_s - over_s, middle_s), rate(samples, middle_s, until_s)
    return rate(samples, until_s - over_s, until_s) if min(halves) >= RATE_MIN else None


def rate(samples: Sequence[Sample], since_s: float, until_s: float) -> float:
    """Return the rate between two moments; 0 with fewer than two samples."""
    inside = [sample for sample in samples if since_s <= sample.at_s <= until_s]
    if len(inside) < 2 or inside[-1].at_s == inside[0].at_s:
        return 0.0
    return (inside[-1].total - inside[0].total) / (inside[-1].at_s - inside[0].at_s)


def seconds_to_recovery(
    samples: Sequence[Sample], since_s: float, goal: float, *, over_s: float, settled_s: float = 0.0
) -> float:
    """Return seconds from a moment until the rate over `over_s` is back at `goal`.

    The mean rate of the `settled_s` after that window must reach `goal` too, so that a burst of
    piled-up work is no recovery. Work in flight still completes after a kill, so the search starts
    at the first window below `goal`: the result is 0 when there is none, and infinite when the rate
    never recovers.
    """
    total_s = over_s + settled_s
    windows = [
        (at_s, rate(samples, at_s, at_s + over_s))
        for at_s, _ in samples
        if at_s >= since_s and at_s + over_s <= samples[-1].at_s
    ]
    dip_s = next((at_s for at_s, found in windows if found < goal), None)
    if dip_s is None:
        return 0.0
    for at_s, found in windows:
        if at_s <= dip_s or found < goal or at_s + total_s > samples[-1].at_s:
            continue
        if not settled_s or rate(samples, at_s + over_s, at_s + total_s) >= goal:
            return at_s - since_s
    return math.inf
