"""Goal: groups respect their bounds, keep the order, and lose no record."""

from uuid import UUID

from msgspec.structs import replace

from core.ids import new_uuid
from core.outcomes import Outcome
from core.states import CloseReason
from results.writer.record_groups import Entry, Group, grouped
from topics.records.records import CallRef, ItemOutcome, JobClose, JobRef, Outcomes

JOB = new_uuid()


def outcomes(*indexes: int, job_id: UUID = JOB) -> Outcomes:
    ref = JobRef(job_id, 0, job_id, "m", "1", "p", "/v1/x", "k", 0.0)
    return Outcomes(
        ref, [ItemOutcome(index, None, Outcome.SUCCEEDED, 200, b"") for index in indexes]
    )


def entry(offset: int, record: Outcomes | JobClose | None, *, partition: int = 0) -> Entry:
    return Entry(("results", partition), offset + 1, 100, record)


def groups(entries: list[Entry], *, items_max: int = 10, bytes_max: int = 1000) -> list[Group]:
    return list(grouped(entries, items_max=items_max, bytes_max=bytes_max))


def test_no_records_make_no_group() -> None:
    assert groups([]) == []


def test_call_reports_are_no_outcomes_of_jobs() -> None:
    ref = JobRef(new_uuid(), 0, JOB, "m", "1", "p", "/v1/x", "k", 0.0, call=CallRef("c", 0))
    item = ItemOutcome(0, None, Outcome.SUCCEEDED, 200, b"")
    durable = replace(ref, call=CallRef("c", 0, durable=True))

    (group,) = groups([entry(0, Outcomes(ref, [item])), entry(1, Outcomes(durable, [item]))])

    assert group.calls == [Outcomes(ref, [item])]
    assert group.jobs == {durable.job_id: [item]}
    assert (group.item_count, group.next_offsets) == (2, {("results", 0): 2})


def test_records_of_one_job_become_one_list_in_order() -> None:
    other = new_uuid()

    (group,) = groups(
        [
            entry(0, outcomes(3, 1)),
            entry(5, outcomes(0, job_id=other), partition=2),
            entry(1, outcomes(2)),
        ]
    )

    assert [item.index for item in group.jobs[JOB]] == [3, 1, 2]
    assert [item.index for item in group.jobs[other]] == [0]
    assert group.next_offsets == {("results", 0): 2, ("results", 2): 6}


def test_group_ends_before_its_item_limit() -> None:
    found = groups([entry(n, outcomes(*range(4))) for n in range(3)], items_max=8)

    assert [group.item_count for group in found] == [8, 4]
    assert [group.next_offsets[("results", 0)] for group in found] == [2, 3]


def test_group_ends_before_its_byte_limit() -> None:
    found = groups([entry(n, outcomes(n)) for n in range(5)], bytes_max=200)

    assert [group.size_bytes for group in found] == [200, 200, 100]


def test_record_above_the_limits_is_a_group_of_its_own() -> None:
    found = groups([entry(0, outcomes(*range(50))), entry(1, outcomes(51))], items_max=10)

    assert [group.item_count for group in found] == [50, 1]


def test_close_keeps_its_place() -> None:
    close = JobClose(JOB, 0, CloseReason.EXPIRED)

    found = groups([entry(0, outcomes(0)), entry(1, close), entry(2, outcomes(1))])

    assert [group.exclusive for group in found] == [None, close, None]
    assert [list(group.jobs) for group in found] == [[JOB], [], [JOB]]


def test_unreadable_record_only_moves_the_offset() -> None:
    (group,) = groups([entry(0, outcomes(0)), entry(1, None)])

    assert (group.item_count, group.next_offsets) == (1, {("results", 0): 2})
