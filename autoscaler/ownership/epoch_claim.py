"""When a process becomes the owner, and when it stops to be it. Pure; for one thread.

The holder of the partition reads the topic to its end, appends the next epoch, and decides once it
has read that record back as the first of its epoch. So the log, and not the group, decides between
a process that was paused and its successor.
"""

from collections.abc import Iterable

from autoscaler.ownership.scaling_log import ScalingLog
from topics.records.records import Record


class EpochClaim:
    """The claim of one process."""

    def __init__(self, owner_id: str) -> None:
        """`owner_id` is unique to the process."""
        self.owner_id = owner_id
        self.log = ScalingLog()
        self._has_partition = False
        self._end: int | None = None
        self._next_offset = 0
        self._claimed: int | None = None
        self._least_epoch = 0

    def assign(self) -> None:
        """Begin anew: the partition is read from its start."""
        self.log = ScalingLog()
        self._has_partition, self._end = True, None
        self._next_offset, self._claimed = 0, None

    def revoke(self) -> None:
        """Stop: another process may own the partition."""
        self._has_partition, self._claimed = False, None

    @property
    def needs_end(self) -> bool:
        """Whether the end of the partition has to be found."""
        return self._has_partition and self._end is None

    def set_end(self, offset: int) -> None:
        """Set the offset up to which the topic is read before an epoch is claimed."""
        self._end = offset

    def apply(self, records: Iterable[Record], next_offset: int) -> None:
        """Apply records that were read up to `next_offset`."""
        for record in records:
            self.log.apply(record)
        self._next_offset = max(self._next_offset, next_offset)

    def require_above(self, epoch: int) -> None:
        """Claim a higher epoch than one that an actuator has seen, although the log lacks it."""
        self._least_epoch = max(self._least_epoch, epoch)

    def take_claim(self) -> int | None:
        """Return the epoch to append now, once; None if none is due."""
        has_read = self._end is not None and self._next_offset >= self._end
        if not self._has_partition or not has_read or self._claimed is not None:
            return None
        self._claimed = max(self.log.epoch, self._least_epoch) + 1
        return self._claimed

    @property
    def epoch(self) -> int | None:
        """The epoch with which this process decides; None: it is not the owner."""
        is_first = self.log.epoch == self._claimed and self.log.owner_id == self.owner_id
        return self._claimed if self._has_partition and is_first else None

    @property
    def is_superseded(self) -> bool:
        """Whether another process has this epoch or a higher one: this one has to join anew."""
        if self._claimed is None or self.log.epoch < self._claimed:
            return False
        return self.epoch is None
