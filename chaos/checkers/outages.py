"""P10 and P11: how long requests took and what they said while something was away."""

from collections.abc import Collection, Iterable, Sequence

import msgspec

from chaos.clients.history import Operation


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One request that was sent all the time."""

    asked_s: float
    took_s: float
    status: int  # 0: no answer at all
    retry_after: bool = False
    enveloped: bool = True  # an error came in the wire's own form

    @property
    def answered_s(self) -> float:
        """When the answer was there."""
        return self.asked_s + self.took_s


def probes(history: Iterable[Operation], path: str) -> list[Probe]:
    """Return the probes of one path in the order of their answers."""
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
    """Return the longest time that a request took."""
    return max((probe.took_s for probe in seen), default=0.0)


def improper_refusals(seen: Sequence[Probe], proper: Collection[int] = (503,)) -> list[Probe]:
    """Return refusals that are not `proper` with Retry-After in the right envelope."""
    return [
        probe
        for probe in seen
        if not 200 <= probe.status < 300
        and not (probe.status in proper and probe.retry_after and probe.enveloped)
    ]


def seconds_to_response(seen: Sequence[Probe], since_s: float, *, good: bool) -> float | None:
    """Return the time from `since_s` to the first answer that is good (or is not); None: never.

    A good answer counts when it was asked for after that; a bad one when it came after it.
    """
    times = [
        probe.answered_s - since_s
        for probe in seen
        if (probe.asked_s if good else probe.answered_s) >= since_s
        and (200 <= probe.status < 300) == good
    ]
    return min(times, default=None)


def was_available(seen: Sequence[Probe], at_s: float) -> bool:
    """Whether the last answer before a moment was good; False when there was none."""
    before = [probe for probe in seen if probe.answered_s < at_s]
    return bool(before) and 200 <= max(before, key=lambda p: p.answered_s).status < 300


def told(seen: Sequence[Probe]) -> str:
    """Return the first few for a reader who looks into a failure."""
    return "; ".join(f"{probe.status} after {probe.took_s:.1f} s" for probe in seen[:5])
