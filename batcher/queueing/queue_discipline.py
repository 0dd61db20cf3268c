"""The order in which queues serve tenants and their jobs, if it is not the fair one.

Production has the fair order alone and no setting for another. Benchmarks compare it with FIFO,
round robin and strict priority through the same role.
"""

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from batcher.queueing.queue_levels import BatchKeyQueue, PoolQueue
from topics.records.records import JobRef

NextTenant = Callable[[PoolQueue, BatchKeyQueue], UUID]
"""Returns the tenant of a queue that is not empty whose items are next."""


@dataclass(frozen=True, slots=True)
class QueueDiscipline:
    """An order of tenants, and of the jobs of a tenant."""

    next_tenant: NextTenant
    rank: Callable[[JobRef], int]  # of a job among those of its tenant; the lowest goes first
