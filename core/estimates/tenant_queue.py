"""How much work of a tenant precedes the turn and the end of each of its jobs. Pure.

Lower ranks go first (`core.urgency`). Jobs of one rank that have started share equally; the others
start in the order of their age, each when one that has started ends: a window that is small for the
number of jobs goes to the oldest ones. The number that shares is that of the jobs that have
started, which tells what the window allows, without knowing it.

Source: limited processor sharing, for example Zhang, Dai and Zwart, "Law of Large Number Limits of
Limited Processor-Sharing Queues", Mathematics of Operations Research 34 (4), 2009.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class JobWork:
    """The work of a job that is left."""

    job_id: UUID
    rank: int
    age: float  # the lowest is the oldest
    remaining: float
    has_started: bool = False  # an item was emitted
    tail: float = 0.0  # the last part, which goes before other jobs of its rank


@dataclass(frozen=True, slots=True)
class WorkAhead:
    """The work that the tenant has received when a job has its turn, and when it ends."""

    to_turn: float
    to_end: float
    shares_with_new: bool  # a new job of its rank would start at once


def work_ahead(jobs: Iterable[JobWork]) -> dict[UUID, WorkAhead]:
    """Return the work ahead of each job of one tenant on one pool, by the id of the job."""
    ranks: defaultdict[int, list[JobWork]] = defaultdict(list)
    for job in jobs:
        ranks[job.rank].append(job)
    found: dict[UUID, WorkAhead] = {}
    before = 0.0
    for rank in sorted(ranks):
        before = _add_rank(found, ranks[rank], before)
    return found


def _add_rank(found: dict[UUID, WorkAhead], jobs: Sequence[JobWork], before: float) -> float:
    """Add the jobs of one rank, which start after the work `before`; return the work after them.

    `received` is what a job that has shared from the beginning has received, so a job comes to its
    tail when it has grown by the rest of the job's work since its start.
    """
    ordered = sorted(jobs, key=lambda job: (not job.has_started, job.age, job.job_id))
    started = sum(job.has_started for job in jobs)
    sharing_max = max(1, started)
    is_open = started == len(jobs)
    work, received = before, 0.0
    # What brings it to its tail, the job, the work at its start, and its tail.
    sharing: list[tuple[float, UUID, float, float]] = []
    for job in ordered:
        if len(sharing) == sharing_max:
            work, received = _end_next(found, sharing, work, received, is_open)
        tail = min(job.tail, job.remaining)
        heapq.heappush(sharing, (received + job.remaining - tail, job.job_id, work, tail))
    while sharing:
        work, received = _end_next(found, sharing, work, received, is_open)
    return work


def _end_next(
    found: dict[UUID, WorkAhead],
    sharing: list[tuple[float, UUID, float, float]],
    work: float,
    received: float,
    is_open: bool,
) -> tuple[float, float]:
    count = len(sharing)
    ends_at, job_id, to_turn, tail = heapq.heappop(sharing)
    work += count * (ends_at - received) + tail
    found[job_id] = WorkAhead(to_turn, work, is_open)
    return work, ends_at
