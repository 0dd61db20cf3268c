"""The measures of the drill `scaling` (P16)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import sqlalchemy as sa

from chaos.installations.scaling_relay import ACCEPTED, RelayedOrder
from chaos.measures import Measure, duration, violations
from chaos.observations.database import select_value
from chaos.observations.scaled_pool import PoolSample
from core.ids import JOB, parse_public_id

PROMISE: Final = "P16"
TAKEOVER_S_MAX: Final = 10.0
TARGET_S_MAX: Final = 30.0


class Recovery(NamedTuple):
    """A change of the number of replicas beside a fault."""

    fault: str
    seconds: float  # from its healing until the host ran the number; infinite: never


class OwnerEnd(NamedTuple):
    """The end or pause of the autoscaler that decides."""

    at_s: float
    seconds: float  # until the next one decides; infinite: never


def measure_recoveries(
    recoveries: Iterable[Recovery], owner_ends: Iterable[OwnerEnd]
) -> list[Measure]:
    """Return how long each change and each takeover took."""
    return [
        *(
            duration(PROMISE, f"until the number of replicas: {fault}", seconds, TARGET_S_MAX)
            for fault, seconds in recoveries
        ),
        *(
            duration(PROMISE, "until another autoscaler decides", one.seconds, TAKEOVER_S_MAX)
            for one in owner_ends
        ),
    ]


def measure_orders(
    orders: Sequence[RelayedOrder], samples: Sequence[PoolSample], replicas_max: int
) -> list[Measure]:
    """Return what is wrong with the orders of a round and with what the host ran."""
    accepted = [one.order for one in orders if one.outcome == ACCEPTED]
    back = [
        f"{after.epoch} after {before.epoch}"
        for before, after in pairwise(accepted)
        if (after.epoch, after.sequence) < (before.epoch, before.sequence)
    ]
    sampled = [
        f"epoch {after.epoch} after {before.epoch}"
        for before, after in pairwise(samples)
        if after.epoch < before.epoch
    ]
    outside = [
        f"{one.order.replicas} ordered" for one in orders if one.order.replicas > replicas_max
    ] + [
        f"{one.ordered} ordered, {len(one.existing)} exist"
        for one in samples
        if max(one.ordered, len(one.existing)) > replicas_max
    ]
    outcomes = Counter(one.outcome for one in orders)
    return [
        violations(
            PROMISE, "orders carried out after one of a higher epoch", back, size=len(accepted)
        ),
        violations(PROMISE, "epochs of the host that went back", sampled, size=len(samples)),
        violations(
            PROMISE,
            "numbers of replicas out of bounds",
            outside,
            size=len(orders) + len(samples),
        ),
        Measure(
            PROMISE,
            "orders that were not carried out",
            len(orders) - len(accepted),
            relation="report",
            size=len(orders),
            evidence=", ".join(f"{name} {count}" for name, count in sorted(outcomes.items())),
        ),
    ]


def measure_attempts(
    engine: sa.Engine, jobs: Sequence[str], items: int, kills: int
) -> list[Measure]:
    """Return what kills of replicas cost items: jobs of `items` each, `kills` of replicas.

    A crash among others charges no item a failed attempt, and its process counts once for a job.
    """
    ids = [parse_public_id(JOB, job) for job in jobs]
    failed = int(
        select_value(engine, "SELECT count(*) FROM item_attempts WHERE job_id = ANY(:ids)", ids=ids)
    )
    ends = int(
        select_value(
            engine,
            "SELECT count(DISTINCT process_id) FROM job_process_ends WHERE job_id = ANY(:ids)",
            ids=ids,
        )
    )
    size = len(jobs) * items
    return [
        Measure(PROMISE, "failed attempts that items were charged", failed, size=size),
        Measure(
            PROMISE,
            "ends of replicas that were charged to jobs",
            ends,
            limit=kills,
            size=size,
            evidence=f"{kills} replicas were removed",
        ),
    ]
