"""A sender for tests: keeps what is sent, instead of a broker."""

from dataclasses import dataclass, field

from topics.clients.producer import OnDelivery
from topics.records.codec import Headers


@dataclass(frozen=True, slots=True)
class Sent:
    """A record as it was given to the sender."""

    topic: str
    partition: int
    key: bytes | None
    headers: Headers
    value: bytes


@dataclass(slots=True)
class SentRecords:
    """Stands in for the producer."""

    records: list[Sent] = field(default_factory=list)

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
