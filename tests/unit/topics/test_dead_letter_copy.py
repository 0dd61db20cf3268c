"""Goal: the copy of any record fits into a record."""

from core.limits import RECORD_BYTES_MAX
from tests.support.recording_sender import SentRecords
from topics.records.codec import Headers, decode
from topics.records.dead_letter_copy import send_dead_letter
from topics.records.received_record import ReceivedRecord
from topics.records.records import DeadLetter


def test_a_copy_of_any_record_fits_the_record_limit() -> None:
    sent, large = SentRecords(), b"x" * RECORD_BYTES_MAX
    headers: Headers = [("kind", b"batch")]
    for key, found, value in [
        (large, headers, b"v"),
        (b"k", [("h", large)], b"v"),
        (b"k", headers, large),
    ]:
        record = ReceivedRecord("batches.p.bulk", 3, 9, key, found, value, 0)
        send_dead_letter(sent, record, code="c")

    assert {(copy.topic, copy.partition) for copy in sent.records} == {("dead_letters", 0)}
    assert max(len(copy.value) for copy in sent.records) < RECORD_BYTES_MAX
    letters = [decode(DeadLetter, copy.value, copy.headers) for copy in sent.records]
    assert [len(letter.key or b"") for letter in letters] == [1024, 1, 1]
    assert [letter.headers for letter in letters] == [headers, [], headers]
    assert all((letter.partition, letter.offset) == (3, 9) for letter in letters)
