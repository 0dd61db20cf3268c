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
            on_delivery(self.failure)
