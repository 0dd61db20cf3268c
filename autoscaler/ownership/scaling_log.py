"""The newest state on the topic `scaling`, from its records in their order. Pure."""

from topics.records.records import Record
from topics.records.scaling import AutoscalerEpoch, PoolScaling, ScalingOverride


class ScalingLog:
    """The highest epoch, the state of each pool, and the operators' orders."""

    def __init__(self) -> None:
        """Start before the first record."""
        self.epoch = 0
        self.owner_id = ""
        self.pools: dict[str, PoolScaling] = {}
        self.overrides: dict[str, ScalingOverride] = {}

    def apply(self, record: Record) -> None:
        """Apply the next record.

        Of an epoch, the first record counts: two processes that claim the same one have one winner,
        whom both read from the log. State of a lower epoch never replaces that of a higher one.
        """
        if isinstance(record, AutoscalerEpoch):
            if record.epoch > self.epoch:
                self.epoch, self.owner_id = record.epoch, record.owner_id
        elif isinstance(record, PoolScaling):
            known = self.pools.get(record.pool)
            if known is None or _order(record) >= _order(known):
                self.pools[record.pool] = record
        elif isinstance(record, ScalingOverride):
            self.overrides[record.pool] = record


def _order(record: PoolScaling) -> tuple[int, int]:
    return record.epoch, record.sequence
