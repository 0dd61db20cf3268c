"""The calls that wait in batchers, of all API processes, from the `demand` topic."""

from typing import Final

from topics.records.received_record import ReceivedRecord
from topics.records.records import Demand
from topics.tail_readers.tail_reader_thread import decode_records

DEMAND_S_MAX: Final = 1.5
"""Age of a batcher's record from which it does not count. A batcher with waiting items repeats its
record every 0.2 s."""

_JOB_CLASS: Final = "interactive"


class PoolDemand:
    """The newest demand of each batcher. One thread calls `apply_records`, any thread may read."""

    def __init__(self) -> None:
        """No call is known to wait until the first record."""
        self._newest: dict[str, tuple[Demand, float]] = {}  # by batcher, with the time of receipt
        self._waiting: dict[str, int] = {}  # by pool; replaced as a whole
        self._updated_s = 0.0

    def apply_records(self, records: list[ReceivedRecord], *, now_s: float) -> None:
        """Apply records that arrived now. Raises SchemaTooNewError."""
        for _, demand in decode_records(Demand, records):
            if demand is not None and demand.job_class == _JOB_CLASS:
                self._newest[demand.batcher_id] = demand, now_s
        self._newest = {
            batcher_id: (demand, received_s)
            for batcher_id, (demand, received_s) in self._newest.items()
            if now_s - received_s <= DEMAND_S_MAX
        }
        waiting: dict[str, int] = {}
        for demand, _ in self._newest.values():
            for pool, count in demand.waiting.items():
                waiting[pool] = waiting.get(pool, 0) + max(0, count)
        self._waiting, self._updated_s = waiting, now_s

    def waiting(self, pool: str, *, now_s: float) -> int:
        """Return the calls that wait for a replica of the pool; 0 while that is not known."""
        waiting = self._waiting
        return waiting.get(pool, 0) if now_s - self._updated_s <= DEMAND_S_MAX else 0
