"""Orders of tenants and jobs to compare the fair queue with: FIFO, round robin, strict priority.

The batcher runs each of them in place of the fair order. Intake bounds and shares what is
outstanding, which would be half of a fair queue; `WHOLE_JOBS` has it emit whole jobs instead (of
one large job 200,000 items), so that the batcher holds everything in the order of its arrival, as a
plain topic does.
"""

from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

from batcher.queueing.buffered_chunk import BufferedChunk
from batcher.queueing.queue_discipline import QueueDiscipline
from batcher.queueing.queue_levels import BatchKeyQueue, PoolQueue
from core.urgency import PRIORITY_MAX
from topics.records.records import JobRef

FAIR: Final = "fair"

WHOLE_JOBS: Final[Mapping[str, str]] = {
    "MILLRACE_INTAKE_WINDOW_S": "600",
    "MILLRACE_INTAKE_READ_AHEAD_ITEMS": "200000",
    "MILLRACE_INTAKE_READ_AHEAD_BYTES": str(1 << 31),
    "MILLRACE_BATCHER_HELD_ITEMS_MAX": "400000",
    "MILLRACE_BATCHER_HELD_BYTES_MAX": str(1 << 31),
}
"""Settings of the roles beside these disciplines."""


class JobNumbers:
    """Numbers jobs in the order in which they are first seen."""

    def __init__(self) -> None:
        self._numbers: dict[UUID, int] = {}

    def number(self, job: JobRef) -> int:
        """Return the number of a job."""
        return self._numbers.setdefault(job.job_id, len(self._numbers))


def fifo() -> QueueDiscipline:
    """Serve the jobs of all tenants in the order of their arrival."""
    number = JobNumbers().number
    return QueueDiscipline(_lowest(number), number)


def round_robin() -> QueueDiscipline:
    """Serve tenants in turn, a turn of items each, and the jobs of a tenant in order of arrival."""
    return QueueDiscipline(_Turns(), JobNumbers().number)


def strict_priority() -> QueueDiscipline:
    """Serve the jobs of all tenants by priority, then in the order of their arrival."""
    numbers = JobNumbers()

    def rank(job: JobRef) -> int:
        return ((PRIORITY_MAX - job.priority) << 32) + numbers.number(job)

    return QueueDiscipline(_lowest(rank), rank)


DISCIPLINES: Final[Mapping[str, Callable[[], QueueDiscipline]]] = {
    "fifo": fifo,
    "round_robin": round_robin,
    "strict_priority": strict_priority,
}
"""Each by its name; a call returns a new one without jobs."""


def _lowest(rank: Callable[[JobRef], int]) -> Callable[[PoolQueue, BatchKeyQueue], UUID]:
    """Return the tenant with the job of the lowest rank."""

    def next_tenant(_: PoolQueue, queue: BatchKeyQueue) -> UUID:
        return min(queue.tenants, key=lambda tenant: rank(queue.tenants[tenant].first().job))

    return next_tenant


class _Turns:
    """The tenants of a queue in turn."""

    def __init__(self) -> None:
        self._turns: dict[UUID, int] = {}  # the number of each tenant's last turn
        self._count = 0
        self._last: tuple[UUID, BufferedChunk, int] | None = None

    def __call__(self, _: PoolQueue, queue: BatchKeyQueue) -> UUID:
        """Return the tenant whose last turn is longest ago.

        A tenant keeps its turn until its items leave: a batch may have had no space for them.
        """
        if self._last is not None:
            tenant, chunk, item_count = self._last
            is_first = tenant in queue.tenants and queue.tenants[tenant].first().first() is chunk
            if is_first and chunk.item_count == item_count:
                return tenant
        tenant = min(queue.tenants, key=lambda one: self._turns.get(one, -1))
        self._count += 1
        self._turns[tenant] = self._count
        chunk = queue.tenants[tenant].first().first()
        self._last = tenant, chunk, chunk.item_count
        return tenant
