"""Goal: copies of unreadable records take bounded memory, and none is lost."""

from tests.support.recording_sender import SentRecords
from topics.clients.dead_letter_sender import DeadLetterSender
from topics.records.codec import decode
from topics.records.received_record import ReceivedRecord
from topics.records.records import DeadLetter

VALUE = b"x" * 1000
FIRST, SECOND = ("events", 0), ("events", 1)


class Copies:
    """Copies of records, sent while `dead_letters` is unavailable."""

    def __init__(self, *, bytes_max: int = 5000) -> None:
        self.log = SentRecords(acknowledges=True, unavailable={("dead_letters", 0)})
        self.sender = DeadLetterSender(self.log, bytes_max=bytes_max)
        self.acknowledged: list[int] = []

    def send(self, offset: int, partition: tuple[str, int] = FIRST, value: bytes = VALUE) -> None:
        record = ReceivedRecord(*partition, offset, b"k", [], value, 0)
        self.sender.send(record, code="c", on_delivery=lambda _: self.acknowledged.append(offset))

    @property
    def sent(self) -> list[int]:
        return [decode(DeadLetter, r.value, r.headers).offset for r in self.log.records]


def test_copies_above_the_limit_wait_and_are_sent_in_order() -> None:
    copies = Copies()
    for offset in range(6):
        copies.send(offset, SECOND if offset == 5 else FIRST)
    assert copies.sent == [0, 1, 2]
    assert copies.sender.waiting_partitions == {FIRST, SECOND}

    copies.log.restore()
    copies.sender.send_waiting()
    assert copies.sent == copies.acknowledged == [*range(6)]
    assert copies.sender.waiting_partitions == set()


def test_a_partition_waits_only_for_its_own_copies() -> None:
    copies = Copies(bytes_max=1)
    copies.send(0, FIRST)
    assert copies.sender.waiting_partitions == set()  # the copy of the only record is sent
    copies.send(1, SECOND)
    assert copies.sender.waiting_partitions == {SECOND}


def test_empty_records_count_towards_the_limit() -> None:
    copies = Copies()
    for offset in range(10):
        copies.send(offset, value=b"")
    assert len(copies.sent) < 10


def test_unsent_copies_of_revoked_partitions_are_dropped() -> None:
    copies = Copies(bytes_max=1)
    for offset, partition in enumerate([FIRST, FIRST, SECOND]):
        copies.send(offset, partition)
    copies.sender.discard([FIRST])
    copies.log.restore()
    copies.sender.send_waiting()
    assert copies.sent == copies.acknowledged == [0, 2]
