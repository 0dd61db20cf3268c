"""The jobs whose items this replica has had for a while, so that intake does not re-emit them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from topics.records.records import Batch

IN_FLIGHT_S_MIN: Final = 2.0
"""Age from which a batch counts: most end earlier and are never named."""

REPEAT_S: Final = 1.0
"""Time between two records that name the jobs. Capacity records between them do not."""

JOBS_MAX: Final = 2000
"""Jobs named in one record, those of the oldest batches first: 32 KiB."""


@dataclass(slots=True)
class _OpenBatch:
    job_ids: frozenset[UUID]
    arrived_s: float
    item_count: int


@dataclass(slots=True)
class InFlightJobs:
    """Tracks the open batches of one replica and class; times are monotonic seconds."""

    _open: dict[UUID, _OpenBatch] = field(default_factory=dict)  # by batch, the oldest first
    _named_s: float = float("-inf")
    _has_named: bool = False

    def add(self, batch: Batch, item_count: int, *, now_s: float) -> None:
        """Record the arrival of a batch."""
        if (known := self._open.get(batch.batch_id)) is not None:
            known.item_count += item_count
        elif item_count:
            job_ids = frozenset(chunk.job.job_id for chunk in batch.parts)
            self._open[batch.batch_id] = _OpenBatch(job_ids, now_s, item_count)

    def remove(self, batch: Batch, item_count: int) -> None:
        """Record that items of a batch ended, were dropped or requeued."""
        known = self._open.get(batch.batch_id)
        if known is None:
            return
        known.item_count -= item_count
        if known.item_count <= 0:
            del self._open[batch.batch_id]

    def job_ids_to_publish(self, *, now_s: float) -> list[UUID] | None:
        """Return the jobs that the next capacity record names; None if it names none.

        Jobs are named every `REPEAT_S`, and once more, as an empty list, when none is left.
        """
        if now_s - self._named_s < REPEAT_S:
            return None
        job_ids = list(self._long_in_flight(now_s))
        if not job_ids and not self._has_named:
            return None
        self._named_s, self._has_named = now_s, bool(job_ids)
        return job_ids

    def _long_in_flight(self, now_s: float) -> Iterator[UUID]:
        seen: set[UUID] = set()
        for batch in self._open.values():
            if now_s - batch.arrived_s < IN_FLIGHT_S_MIN or len(seen) >= JOBS_MAX:
                return
            new = sorted(batch.job_ids - seen)[: JOBS_MAX - len(seen)]
            seen.update(new)
            yield from new
