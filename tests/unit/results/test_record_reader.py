"""Goal: unreadable records go to the dead letters unchanged; a newer schema stops the role."""

import pytest

from core.errors import SchemaTooNewError
from core.ids import new_uuid
from core.limits import RECORD_BYTES_MAX
from core.object_names import answer_prefix
from core.outcomes import Outcome
from core.states import CloseReason
from results.writer.record_groups import read_entry
from tests.support.recording_sender import SentRecords
from tests.unit.batcher.builders import job_ref
from topics.clients.dead_letter_copies import DeadLetterCopies
from topics.records.codec import Headers, decode, encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import Chunk, DeadLetter, ItemOutcome, JobClose, Outcomes


def received(value: bytes | None, headers: Headers) -> ReceivedRecord:
    return ReceivedRecord("results", 5, 42, b"key", headers, value, 0)


def stored_outcome(body_key: str) -> Outcomes:
    item = ItemOutcome(0, None, Outcome.SUCCEEDED, 200, b"", body_key=body_key)
    return Outcomes(job_ref(), [item])


def test_an_outcome_may_name_an_object_of_its_job() -> None:
    outcomes = stored_outcome(answer_prefix(job_ref().job_id) + "1")
    entry = read_entry(
        received(encode(outcomes), kind_headers(Outcomes)), DeadLetterCopies(SentRecords())
    )
    assert entry.record == outcomes


def test_a_record_of_process_ends_needs_no_outcome() -> None:
    ends, sent = Outcomes(job_ref(), [], [new_uuid()]), SentRecords()
    entry = read_entry(received(encode(ends), kind_headers(Outcomes)), DeadLetterCopies(sent))
    assert entry.record == ends
    assert sent.records == []


def test_close_is_decoded() -> None:
    close, sent = JobClose(new_uuid(), 3, CloseReason.EXPIRED), SentRecords()

    entry = read_entry(received(encode(close), kind_headers(JobClose)), DeadLetterCopies(sent))

    assert (entry.record, entry.partition, entry.next_offset) == (close, ("results", 5), 43)
    assert sent.records == []


@pytest.mark.parametrize(
    ("value", "headers"),
    [
        (b"\xc1", kind_headers(JobClose)),
        (None, kind_headers(JobClose)),
        (b"", []),
        (b"\x90", kind_headers(Chunk)),
        (b"x" * RECORD_BYTES_MAX, kind_headers(JobClose)),
        (encode(Outcomes(job_ref(), [])), kind_headers(Outcomes)),
        (encode(stored_outcome(answer_prefix(new_uuid()) + "1")), kind_headers(Outcomes)),
        (encode(stored_outcome("files/1")), kind_headers(Outcomes)),
    ],
    ids=[
        *("garbage", "empty", "no headers", "another kind", "as large as can be", "no outcome"),
        *("object of another job", "input file"),
    ],
)
def test_unreadable_record_becomes_a_dead_letter(value: bytes | None, headers: Headers) -> None:
    sent = SentRecords()

    entry = read_entry(received(value, headers), DeadLetterCopies(sent))

    assert (entry.record, entry.next_offset) == (None, 43)
    (copy,) = sent.records
    letter = decode(DeadLetter, copy.value, copy.headers)
    assert (copy.topic, copy.partition) == ("dead_letters", 0)
    assert (letter.topic, letter.partition, letter.offset) == ("results", 5, 42)
    assert (letter.code, letter.key, letter.headers) == ("record_unreadable", b"key", headers)
    assert (value or b"").startswith(letter.value)
    assert len(copy.value) < RECORD_BYTES_MAX


def test_newer_schema_stops_the_role() -> None:
    newer_control = [("kind", b"close"), ("schema", b"99")]

    with pytest.raises(SchemaTooNewError):
        read_entry(received(b"", newer_control), DeadLetterCopies(SentRecords()))
