"""Goal: the copy of a record always fits a record, whatever its sender put around its value."""

from core.limits import RECORD_BYTES_MAX
from topics.codec import Headers, decode
from topics.consumer import Received
from topics.dead_letters import send_dead_letter
from topics.producer import OnDelivery
from topics.records import DeadLetter


class Sent:
    def __init__(self) -> None:
        self.letters: list[DeadLetter] = []
        self.sizes: list[int] = []

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
        assert (topic, partition) == ("dead_letters", 0)
        self.sizes.append(len(value or b""))
        self.letters.append(decode(DeadLetter, value, headers))


def test_a_copy_fits_whatever_the_record_was() -> None:
    sent, large = Sent(), b"x" * RECORD_BYTES_MAX
    headers: Headers = [("kind", b"batch")]
    for key, found, value in [
        (large, headers, b"v"),
        (b"k", [("h", large)], b"v"),
        (b"k", headers, large),
    ]:
        send_dead_letter(sent, Received("batches.p.bulk", 3, 9, key, found, value, 0), code="c")

    assert max(sent.sizes) < RECORD_BYTES_MAX
    assert [len(letter.key or b"") for letter in sent.letters] == [1024, 1, 1]
    assert [letter.headers for letter in sent.letters] == [headers, [], headers]
    assert all((letter.partition, letter.offset) == (3, 9) for letter in sent.letters)
