"""A `RecordSender` that keeps the records in memory."""

from dataclasses import dataclass, field

from topics.clients.producer import OnDelivery
from topics.records.codec import Headers


@dataclass(frozen=True, slots=True)
class Sent:
    """A sent record."""

    topic: str
    partition: int
    key: bytes | None
    headers: Headers
    value: bytes


@dataclass(slots=True)
class SentRecords:
    """Keeps every sent record, in order; acknowledges none, or each at once."""

    records: list[Sent] = field(default_factory=list)
    acknowledges: bool = False
    failure: BaseException | None = None  # reported in place of an acknowledgement
    unavailable: set[tuple[str, int]] = field(default_factory=set)
    """Partitions that acknowledge nothing until `restore`."""
    _waiting: list[tuple[tuple[str, int], OnDelivery]] = field(default_factory=list)

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        partition: int,
        key: bytes | None = None,
        headers: Headers | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """See `topics.clients.producer.RecordSender`."""
        self.records.append(Sent(topic, partition, key, headers or [], value or b""))
        if self.acknowledges and on_delivery is not None:
            if (topic, partition) in self.unavailable:
                self._waiting.append(((topic, partition), on_delivery))
            else:
                on_delivery(self.failure)

    def has_space(self, topic: str, partition: int) -> bool:
        """See `topics.clients.producer.PartitionSender`."""
        return not self.is_unavailable(topic, partition)

    def is_unavailable(self, topic: str, partition: int) -> bool:
        """See `topics.clients.producer.PartitionSender`."""
        return any(place == (topic, partition) for place, _ in self._waiting)

    def restore(self) -> None:
        """Make all partitions available: they acknowledge what waits."""
        self.unavailable.clear()
        waiting, self._waiting = self._waiting, []
        for _, on_delivery in waiting:
            on_delivery(None)
