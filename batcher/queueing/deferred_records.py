"""Records that were read while their tenant had its quota: only their offsets are kept.

Their tickets stay open, so nothing behind them is committed and a crash reads them again. When the
tenant has less than its quota, the records are read once more from their offsets.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from batcher.faust_app.ordered_acks import AckTicket
from batcher.policy.buffer_quotas import TenantPool
from topics.records.records import JobRef


@dataclass(slots=True, eq=False)
class DeferredRecord:
    """A record whose items are not in memory."""

    job: JobRef
    ticket: AckTicket
    offset: int
    item_count: int
    byte_count: int  # of its chunk in the buffer
    is_redelivery: bool  # it was on the log when its partition was assigned
    is_urgent: bool = False  # it pins other records: it is read whatever the quota

    @property
    def key(self) -> TenantPool:
        """The tenant and pool whose quota it needs."""
        return self.job.tenant_id, self.job.pool


class DeferredRecords:
    """The deferred records by tenant and pool, those of each in the order of arrival."""

    def __init__(self, count_max: int) -> None:
        """With a `count_max` of 0 no record can be deferred."""
        self._count_max = count_max
        self._records: dict[TenantPool, deque[DeferredRecord]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: TenantPool) -> bool:
        return key in self._records

    def __iter__(self) -> Iterator[DeferredRecord]:
        return (record for records in self._records.values() for record in records)

    @property
    def is_enabled(self) -> bool:
        """Whether records can be deferred at all."""
        return self._count_max > 0

    @property
    def is_full(self) -> bool:
        """Whether no further record can be deferred."""
        return self._count >= self._count_max

    def add(self, record: DeferredRecord) -> None:
        """Add a record behind the others of its tenant."""
        self._records.setdefault(record.key, deque()).append(record)
        self._count += 1

    def defer_again(self, records: list[DeferredRecord]) -> None:
        """Add records that were taken and could not be read, before the others of their tenant."""
        for record in reversed(records):
            self._records.setdefault(record.key, deque()).appendleft(record)
        self._count += len(records)

    def remove(self, is_removed: Callable[[DeferredRecord], bool]) -> None:
        """Remove the records for which `is_removed` returns True; it is called once for each."""
        for key, records in list(self._records.items()):
            kept = deque(record for record in records if not is_removed(record))
            self._count -= len(records) - len(kept)
            self._replace(key, kept)

    def take_readable(
        self,
        count_max: int,
        *,
        buffered: Callable[[TenantPool], int],
        reserve: Callable[[DeferredRecord], bool],
    ) -> list[DeferredRecord]:
        """Remove and return records to read: the urgent ones, then those that have a quota.

        The tenant with the fewest `buffered` items is next. `reserve` counts a record as buffered
        and returns True, or returns False if the tenant has its quota.
        """
        taken: list[DeferredRecord] = []
        if urgent := [record for record in self if record.is_urgent][:count_max]:
            found = set(map(id, urgent))
            self.remove(lambda record: id(record) in found)
            taken += [record for record in urgent if reserve(record)]
        queue = [(buffered(key), number, key) for number, key in enumerate(self._records)]
        heapq.heapify(queue)
        while queue and len(taken) < count_max:
            _, number, key = heapq.heappop(queue)
            records = self._records[key]
            if not reserve(records[0]):
                continue
            taken.append(records.popleft())
            self._count -= 1
            if records:
                heapq.heappush(queue, (buffered(key), number, key))
            else:
                del self._records[key]
        return taken

    def _replace(self, key: TenantPool, records: deque[DeferredRecord]) -> None:
        if records:
            self._records[key] = records
        else:
            del self._records[key]
