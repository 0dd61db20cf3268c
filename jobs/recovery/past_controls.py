"""Deletes control states that no record on the log needs any more, by tombstones on `control`.

A control state matters to records that were emitted before it. All of them have passed their own
deadline once it is older than the longest completion window, and are dropped without it. The
retention of the topic does not delete it: compaction merges its segment with newer ones.
"""

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from core.clock import Clock
from topics.clients.producer import PartitionSender
from topics.clients.tracked_sends import TrackedSends
from topics.records.catalogue import COMPLETION_WINDOW_DAYS_MAX, CONTROL, DAY_MS
from topics.settings import KafkaSettings
from topics.tail_readers.topic_tail_reader import TopicTailReader

_LOG = logging.getLogger(__name__)

PAST_MS: Final = (COMPLETION_WINDOW_DAYS_MAX + 1) * DAY_MS
"""Age from which a control state is past; a day more than the window, for clocks that differ."""

KEYS_MAX: Final = 250_000
"""Tombstones of one run, in about 30 MB; the next run continues."""

INTERVAL_S: Final = 6 * 3600.0
_READ_S_MAX: Final = 600.0
_SLICE: Final = 5_000
_ACKNOWLEDGED_S_MAX: Final = 60.0


@dataclass(slots=True)
class PastControls:
    """Reads the whole topic at each run. Any number of processes may run; a second tombstone of a
    job changes nothing.
    """

    kafka: KafkaSettings
    sender: PartitionSender
    clock: Clock
    first_run_s: float  # from now: processes that start together should not read together
    is_stopping: Callable[[], bool] = lambda: False
    _due_at_s: float = field(init=False)
    _from_offset: int = 0  # where the run before this one had found `KEYS_MAX`

    def __post_init__(self) -> None:
        self._due_at_s = self.clock.monotonic_s() + self.first_run_s

    def run_once(self) -> None:
        """Delete past states if a run is due. Raises KafkaUnavailableError, DeliveryError."""
        now_s = self.clock.monotonic_s()
        if now_s < self._due_at_s:
            return
        self._due_at_s = now_s + INTERVAL_S
        past = self._find_past(int(self.clock.wall_s() * 1000) - PAST_MS)
        if past and self._delete(past):
            _LOG.info("past control states were deleted", extra={"count": len(past)})

    def _find_past(self, before_ms: int) -> list[bytes]:
        """Return keys whose newest record is a state written before a time, oldest first."""
        past: dict[bytes, None] = {}
        from_offset, self._from_offset = self._from_offset, 0
        reader = TopicTailReader(self.kafka, CONTROL, client_id="past-controls")
        with closing(reader):
            for records in reader.iter_to_end(_READ_S_MAX):
                if self.is_stopping():
                    return []
                for record in records:
                    if record.key is None:
                        continue
                    is_past = record.value is not None and record.appended_ms < before_ms
                    if not is_past:
                        past.pop(record.key, None)
                    elif self._from_offset or record.offset < from_offset:
                        continue
                    elif len(past) < KEYS_MAX:
                        past[record.key] = None
                    else:
                        self._from_offset = record.offset
        return list(past)

    def _delete(self, keys: list[bytes]) -> bool:
        """Send the tombstones; return False when the partition does not acknowledge them."""
        for first in range(0, len(keys), _SLICE):
            sends = TrackedSends(self.sender)
            for key in keys[first : first + _SLICE]:
                sends.send(CONTROL.name, None, partition=0, key=key)
            if not sends.wait(_ACKNOWLEDGED_S_MAX) or self.is_stopping():
                return False
        return True
