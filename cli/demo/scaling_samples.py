"""What an autoscaler decided over time, as samples for a plot and a summary. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from autoscaler.policy.scaling_decision import ScalingDecision
from topics.records.scaling import PoolScaling


@dataclass(frozen=True, slots=True)
class ScalingSample:
    """A pool as of one record; it holds until the next one."""

    at_s: float  # since the epoch
    replicas: int  # that are warm or start
    target: int
    need: float  # in replicas, not rounded
    waiting_tokens: float  # of calls and of jobs


Series: TypeAlias = Callable[[ScalingSample], float]


def sample_of(record: PoolScaling) -> ScalingSample | None:
    """Return the sample of a record; None before the first decision, or for an unreadable one."""
    try:
        decision = msgspec.json.decode(record.decision, type=ScalingDecision)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    inputs = decision.need.inputs
    return ScalingSample(
        at_s=record.at_s,
        replicas=decision.live,
        target=record.target,
        need=decision.need.exact,
        waiting_tokens=inputs.backlog_tokens + inputs.bulk_tokens,
    )


def replica_seconds(samples: Sequence[ScalingSample], until_s: float) -> float:
    """Return the seconds of all replicas together, up to a time."""
    ends_s = [*(sample.at_s for sample in samples), until_s][1:]
    return sum(
        sample.replicas * max(0.0, min(end_s, until_s) - sample.at_s)
        for sample, end_s in zip(samples, ends_s, strict=True)
    )


def is_at_zero(samples: Sequence[ScalingSample], since_s: float) -> bool:
    """Return whether the newest sample is younger than a time and has no replica."""
    if not samples or samples[-1].at_s < since_s:
        return False
    return samples[-1].target == 0 and samples[-1].replicas == 0


def resample(
    samples: Sequence[ScalingSample], value_of: Series, start_s: float, end_s: float, count: int
) -> list[float]:
    """Return the highest value in each of `count` equal parts of a time.

    A value holds until the next sample; it is 0 before the first one.
    """
    width_s = (end_s - start_s) / count
    found = []
    for number in range(count):
        part_s = start_s + number * width_s
        before = [one for one in samples if one.at_s <= part_s][-1:]
        within = [one for one in samples if part_s < one.at_s < part_s + width_s]
        found.append(max(map(value_of, (*before, *within)), default=0.0))
    return found
