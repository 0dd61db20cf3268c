"""Goal: groups respect their bounds, keep the order, and lose no record."""

from uuid import UUID

from msgspec.structs import replace

from core.ids import new_uuid
from core.outcomes import Outcome
from core.states import CloseReason
from results.writer.record_groups import Entry, Group, grouped
from tests.unit.batcher.builders import job_ref
from topics.records.records import CallRef, ItemOutcome, JobClose, Outcomes

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
