"""Goal: records are grouped in order and within bounds; unreadable ones are dead letters."""

from uuid import UUID

import pytest
from msgspec.structs import replace

from core.errors import SchemaTooNewError
from core.ids import new_uuid
from core.limits import RECORD_BYTES_MAX
from core.object_names import answer_prefix
from core.outcomes import Outcome
from core.states import CloseReason
from results.writer.record_groups import Entry, Group, grouped, read_entry
from tests.support.recording_sender import SentRecords
from tests.unit.batcher.builders import job_ref
from topics.clients.dead_letter_copies import DeadLetterCopies
from topics.records.codec import Headers, decode, encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import CallRef, Chunk, DeadLetter, ItemOutcome, JobClose, Outcomes


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


JOB = new_uuid()


def outcomes(*indexes: int, job_id: UUID = JOB) -> Outcomes:
    items = [ItemOutcome(index, None, Outcome.SUCCEEDED, 200, b"") for index in indexes]
    return Outcomes(job_ref(job_id=job_id), items)


def entry(offset: int, record: Outcomes | JobClose | None, *, partition: int = 0) -> Entry:
    return Entry(("results", partition), offset + 1, 100, record)


def groups(entries: list[Entry], *, items_max: int = 10, bytes_max: int = 1000) -> list[Group]:
    return list(grouped(entries, items_max=items_max, bytes_max=bytes_max))


def test_call_reports_are_no_outcomes_of_jobs() -> None:
    call = job_ref(job_id=new_uuid(), call=CallRef("c", 0))
    durable = replace(call, call=CallRef("c", 0, durable=True))
    (item,) = outcomes(0).items

    (group,) = groups([entry(0, Outcomes(call, [item])), entry(1, Outcomes(durable, [item]))])

    assert group.calls == [Outcomes(call, [item])]
    assert group.jobs == {durable.job_id: [item]}
    assert (group.item_count, group.next_offsets) == (2, {("results", 0): 2})


def test_records_of_one_job_become_one_list_in_order() -> None:
    other = new_uuid()

    second = entry(5, outcomes(0, job_id=other), partition=2)
    (group,) = groups([entry(0, outcomes(3, 1)), second, entry(1, outcomes(2))])

    assert [item.index for item in group.jobs[JOB]] == [3, 1, 2]
    assert [item.index for item in group.jobs[other]] == [0]
    assert group.next_offsets == {("results", 0): 2, ("results", 2): 6}


def test_group_ends_before_its_limits() -> None:
    by_items = groups([entry(n, outcomes(*range(4))) for n in range(3)], items_max=8)
    by_bytes = groups([entry(n, outcomes(n)) for n in range(5)], bytes_max=200)
    above = groups([entry(0, outcomes(*range(50))), entry(1, outcomes(51))], items_max=10)

    assert [group.item_count for group in by_items] == [8, 4]
    assert [group.next_offsets[("results", 0)] for group in by_items] == [2, 3]
    assert [group.size_bytes for group in by_bytes] == [200, 200, 100]
    assert [group.item_count for group in above] == [50, 1]  # a record above the limit is alone


def test_close_keeps_its_place() -> None:
    close = JobClose(JOB, 0, CloseReason.EXPIRED)

    found = groups([entry(0, outcomes(0)), entry(1, close), entry(2, outcomes(1))])

    assert [group.exclusive for group in found] == [None, close, None]
    assert [list(group.jobs) for group in found] == [[JOB], [], [JOB]]


def test_process_ends_are_no_outcomes() -> None:
    ends = Outcomes(job_ref(job_id=JOB), [], [new_uuid()])

    (group,) = groups([entry(0, outcomes(0)), entry(1, ends), entry(2, outcomes(1))])

    assert group.process_ends == [ends]
    assert [item.index for item in group.jobs[JOB]] == [0, 1]
    assert (group.item_count, group.next_offsets) == (2, {("results", 0): 3})


def test_unreadable_record_only_moves_the_offset() -> None:
    (group,) = groups([entry(0, outcomes(0)), entry(1, None)])

    assert (group.item_count, group.next_offsets) == (1, {("results", 0): 2})
    assert groups([]) == []
