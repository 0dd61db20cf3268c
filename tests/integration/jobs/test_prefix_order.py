"""Goal: items are emitted by shared prefixes, exactly once through crashes, pauses and appends."""

import json
import random
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.object_names import ORDERS, order_prefix, positions_key
from jobs.expansion.job_loads import OPEN
from jobs.input.input_files import input_files
from jobs.ordering.ordered_files import job_positions
from jobs.recovery.resume import RESUME_DUE
from jobs.store.controls import pause_job, resume_job
from jobs.store.days import job_day
from jobs.store.removable_objects import unneeded_orders
from jobs.tables.files import job_inputs
from jobs.tables.jobs import jobs
from jobs.validation import validator as validator_module
from jobs.validation.validation_process import ValidationProcesses
from results.finaliser.finalisation import READY, finalise
from results.views.item_status import ItemQuery, ItemStatus, read_items
from storage.objects.errors import ObjectNotFoundError
from storage.objects.object_store import read_object
from tests.integration.jobs.ordered_jobs import (
    COUNT,
    PREFIXES,
    Site,
    assert_in_groups,
    chat_line,
    shuffled_lines,
)
from tests.integration.jobs.rows import (
    claim_lease,
    database_away,
    execute,
    job_row,
)
from tests.integration.jobs.stores import Stores
from tests.support.until import until


@pytest.fixture
def site(stores: Stores, processes: ValidationProcesses) -> Iterator[Site]:
    site = Site(stores, processes)
    yield site
    for process in site.started:
        process.jobs.close()


def test_a_shuffled_job_is_emitted_by_prefix(site: Site) -> None:
    job_id = site.job(shuffled_lines("x"))
    site.start().emit_all(at_once=170)

    chunks = site.chunks()
    items = [item for chunk in chunks for item in chunk.items]
    assert_in_groups(site, items)
    assert sorted(item.index for item in items) == list(range(COUNT))
    assert [chunk.position for chunk in chunks] == [0, 100, 170, 270, 340, 440, 510]
    for item in items[:20]:  # the offset is that of the file, for retries and large items
        line = site.lines[item.index]
        assert read_object(site.objects, "files/in", offset=item.offset, length=len(line)) == line
    row = site.row(job_id)
    assert row.order_key.startswith(f"{ORDERS}{job_id.hex}/0-")
    assert row.order_saved_tokens > 0
    assert len(site.order_objects(job_id)) == 2


@pytest.mark.parametrize(
    ("lines", "settings"),
    [
        (shuffled_lines("off"), {"prefix_order": False}),
        ([chat_line(f"{n}", PREFIXES[0], f"question {n}") for n in range(COUNT)], {}),
        ([chat_line(f"{n}", "", f"question {n}") for n in range(COUNT)], {}),
        ([chat_line(f"{n}", PREFIXES[n // 100], f"question {n}") for n in range(COUNT)], {}),
    ],
    ids=["off", "one prefix", "short", "in order already"],
)
def test_a_job_without_gain_is_emitted_in_the_order_of_its_file(
    site: Site, lines: list[bytes], settings: dict[str, Any]
) -> None:
    job_id = site.add(lines)
    site.validate(**settings)
    assert site.row(job_id).order_key is None
    assert site.order_objects(job_id) == []
    site.start().emit_all(at_once=COUNT)
    chunks = sorted(site.chunks(), key=lambda chunk: chunk.items[0].index)
    assert [item.index for chunk in chunks for item in chunk.items] == list(range(COUNT))
    assert all(chunk.position is None for chunk in chunks)


def test_another_intake_continues_at_the_position(site: Site) -> None:
    job_id = site.job(shuffled_lines("x"))
    first = site.start("a")
    first.expander.run_once({job_id: 250})
    first.die()
    second = site.start("b")
    second.emit_all(at_once=333)
    items = site.emitted()
    assert_in_groups(site, items)
    assert sorted(item.index for item in items) == list(range(COUNT))


def test_a_cursor_that_another_order_moved_fails_only_its_job(site: Site) -> None:
    job_id = site.job(shuffled_lines("x"))
    execute(site.engine, "UPDATE job_cursors SET item_index = 7")  # as by an older release
    process = site.start()
    process.expander.run_once({job_id: 100})
    assert site.emitted() == []
    assert process.lease_states() == {job_id: True}


def test_a_crash_before_the_verdict_leaves_an_order_that_nobody_reads(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = site.add(shuffled_lines("x"))
    with monkeypatch.context() as broken:
        broken.setattr(validator_module, "record_verdict", database_away)
        site.validate()
    left = site.order_objects(job_id)
    assert (len(left), site.row(job_id).state) == (2, "validating")
    execute(site.engine, "UPDATE job_leases SET expires_at = now()")
    site.validate()
    named = site.row(job_id).order_key
    assert named is not None
    assert set(site.order_objects(job_id)) == {*left, f"{named}/lines", f"{named}/positions"}
    assert not any(key.startswith(f"{named}/") for key in left)
    site.start().emit_all(at_once=COUNT)
    assert_in_groups(site, site.emitted())


def test_exactly_the_lost_of_the_emitted_items_are_re_emitted(site: Site) -> None:
    job_id = site.job(shuffled_lines("x"))
    process = site.start()
    process.expander.run_once({job_id: 250})
    before = site.emitted()
    done = [item.index for item in before[::3]]
    site.write_rows(job_id, done)
    emitter = site.emitter(process)
    lost = {item.index for item in before} - set(done)
    assert emitter.re_emit_job(job_id, sa.and_(OPEN, jobs.c.id == job_id)) == len(lost)
    again = [chunk for chunk in site.chunks() if chunk.position is None]
    assert sorted(len(chunk.items) for chunk in again) == [len(lost) - 100, 100]
    groups = {item.index: item.prefix_group for item in before}
    found = {item.index: item.prefix_group for chunk in again for item in chunk.items}
    assert found == {index: groups[index] for index in lost}
    process.emit_all()
    assert {item.index for item in site.emitted()} == set(range(COUNT))


def test_a_resume_emits_what_the_pause_made_void_and_then_the_rest(site: Site) -> None:
    job_id = site.job(shuffled_lines("x"))
    process = site.start()
    process.expander.run_once({job_id: 250})
    before = site.emitted()
    site.write_rows(job_id, [before[0].index, before[249].index])
    for operation in (pause_job, resume_job):
        with site.engine.begin() as connection:
            operation(connection, site.tenant_id, job_id)
        process.lease_jobs()
    assert site.emitter(process).re_emit_job(job_id, RESUME_DUE) == 248
    process.emit_all()
    valid = [c for c in site.chunks() if c.job.version]
    indexes = sorted(item.index for chunk in valid for item in chunk.items)
    ran = {before[0].index, before[249].index}
    assert indexes == sorted(set(range(COUNT)) - ran)


def test_an_appended_file_has_its_own_order_after_the_first(site: Site) -> None:
    job_id = site.job(shuffled_lines("x"), sealed=False, total_final=False)
    process = site.start()
    process.expander.run_once({job_id: 250})
    site.append(job_id, shuffled_lines("y", 400))
    with site.engine.begin() as connection:
        (key,) = connection.scalars(sa.select(job_inputs.c.order_key))
    assert key.startswith(f"{ORDERS}{job_id.hex}/1-")
    assert len(site.order_objects(job_id)) == 4
    process.emit_all(at_once=200)
    items = site.emitted()
    for part in (items[:COUNT], items[COUNT:]):
        assert_in_groups(site, part)
    assert sorted(item.index for item in items[:COUNT]) == list(range(COUNT))
    assert sorted(item.index for item in items[COUNT:]) == list(range(COUNT, COUNT + 400))

    execute(site.engine, "UPDATE job_cursors SET item_index = 700")
    again = site.emitter(process).re_emit_job(job_id, sa.and_(OPEN, jobs.c.id == job_id))
    assert again == 700
    repeated = [i for c in site.chunks() if c.position is None for i in c.items]
    assert {item.index for item in repeated} == {item.index for item in items[:700]}


def test_copies_are_passed_in_the_order_and_not_emitted(site: Site) -> None:
    job_id = site.job(shuffled_lines("x", questions=40), deduplicate=True)
    process = site.start()
    process.emit_all(at_once=170)
    items = site.emitted()
    assert_in_groups(site, items)
    bodies = [json.loads(line)["body"] for line in site.lines]
    first = {json.dumps(body): n for n, body in reversed([*enumerate(bodies)])}
    assert sorted(item.index for item in items) == sorted(first.values())
    (load,) = process.loads()
    assert (load.outstanding, load.remaining) == (len(first), 0)
    execute(site.engine, "UPDATE job_cursors SET item_index = 599")
    emitter = site.emitter(process)
    count = emitter.re_emit_job(job_id, sa.and_(OPEN, jobs.c.id == job_id))
    assert len(first) - 1 <= (count or 0) <= len(first)


def test_the_longest_of_the_last_items_is_first(site: Site) -> None:
    limits = [1 + n * 7 % 97 for n in range(COUNT)]
    chance = random.Random(1)
    lines = [
        chat_line(f"{n}", chance.choice(PREFIXES), f"question {n}", max_tokens=limit)
        for n, limit in enumerate(limits)
    ]
    site.job(lines)
    site.start().emit_all(at_once=COUNT)
    outputs = [item.output_token_count for item in site.emitted()]
    last = outputs[-COUNT // 50 :]
    assert last == sorted(last, reverse=True)
    assert outputs != sorted(outputs, reverse=True)


def test_statuses_of_items_follow_the_order(site: Site) -> None:
    job_id = site.job(shuffled_lines("x"))
    process = site.start()
    process.expander.run_once({job_id: 250})
    emitted = {item.index for item in site.emitted()}
    with site.engine.begin() as connection:
        row = job_row(connection, job_id)
        files = input_files(connection, row)
        positions = job_positions(site.objects, files, range(COUNT))
        assert positions is not None
        assert sorted(positions) == list(range(COUNT))

        def read(status: ItemStatus | None, dispatched: dict[int, str]) -> dict[int, ItemStatus]:
            query = ItemQuery(
                job_id, job_day(row.created_at), COUNT, 0, COUNT, status, positions=positions
            )
            return {i.index: i.status for i in read_items(connection, query, dispatched).items}

        running = min(emitted)
        held = {running: "replica"}
        assert set(read(ItemStatus.QUEUED, held)) == emitted - {running}
        assert set(read(ItemStatus.PENDING, held)) == set(range(COUNT)) - emitted
        assert read(ItemStatus.DISPATCHED, held) == {running: ItemStatus.DISPATCHED}
        everything = read(None, held)
    assert {n for n, status in everything.items() if status is ItemStatus.PENDING} == (
        set(range(COUNT)) - emitted
    )


def finalised(site: Site, job_id: UUID) -> sa.Row[Any]:
    with site.engine.begin() as connection:
        lease = claim_lease(connection, "finaliser", READY)
    finalise(site.engine, site.objects, lease, check=lambda: None)
    return site.row(job_id)


@pytest.mark.parametrize("zero_retention", [False, True])
def test_the_output_has_the_order_of_the_file_and_the_ordered_lines_go(
    site: Site, zero_retention: bool
) -> None:
    job_id = site.job(shuffled_lines("x"), zero_retention=zero_retention)
    site.start().emit_all(at_once=COUNT)
    emitted = [item.index for chunk in site.chunks() for item in chunk.items]
    assert emitted != sorted(emitted)
    # The body of a job that retains nothing would be encrypted.
    site.write_rows(job_id, emitted, **({"body": b""} if zero_retention else {}))
    row = finalised(site, job_id)
    assert row.state == "completed"
    left = [] if zero_retention else [positions_key(row.order_key)]
    assert site.order_objects(job_id) == left
    if zero_retention:
        return
    with site.engine.begin() as connection:
        key = connection.scalar(
            sa.text("SELECT object_key FROM files WHERE id = :id"), {"id": row.output_file_id}
        )
    output = [json.loads(line) for line in read_object(site.objects, str(key)).splitlines()]
    assert [line["custom_id"] for line in output] == [site.custom_id(n) for n in range(COUNT)]


def test_a_restored_job_continues_in_the_order_whose_lines_went(site: Site) -> None:
    """The job ended after the backup: its lines are gone, and its cursor counts in them."""
    job_id = site.job(shuffled_lines("x"), sealed=False, total_final=False)
    process = site.start()
    process.expander.run_once({job_id: 250})
    before = site.emitted()
    site.append(job_id, shuffled_lines("y", 400))
    process.die()
    for key in site.order_objects(job_id):
        if key.endswith("/lines"):
            site.objects.delete(key)

    process = site.start("b")
    assert site.emitter(process).re_emit_job(job_id, sa.and_(OPEN, jobs.c.id == job_id)) == 250
    until(lambda: process.expander.run_once({job_id: 100}) == 100)
    process.emit_all()
    items = [item for chunk in site.chunks() if chunk.position is not None for item in chunk.items]
    assert items[:250] == before
    for part in (items[:COUNT], items[COUNT:]):
        assert_in_groups(site, part)
    assert sorted(item.index for item in items) == list(range(COUNT + 400))


@pytest.mark.parametrize("zero_retention", [False, True])
def test_the_order_of_a_cancelled_or_unknown_job_goes(site: Site, zero_retention: bool) -> None:
    job_id = site.job(shuffled_lines("x"), zero_retention=zero_retention)
    keys = set(site.order_objects(job_id))
    lines = {key for key in keys if key.endswith("/lines")}
    others = {f"{order_prefix(UUID(int=5))}0-1/{name}" for name in ("lines", "positions")}
    for values, removable in (
        ({"state": "in_progress"}, set()),
        ({"state": "cancelling", "close_reason": "cancelled"}, set()),
        ({"state": "cancelled"}, keys if zero_retention else lines),
        ({"deleted_at": sa.func.now()}, keys),
    ):
        execute(site.engine, sa.update(jobs).where(jobs.c.id == job_id).values(values))
        with site.engine.begin() as connection:
            assert unneeded_orders(connection, keys | others) == removable | others, values


def test_a_missing_order_fails_only_its_job(site: Site) -> None:
    job_id = site.job(shuffled_lines("x"))
    for key in site.order_objects(job_id):
        site.objects.delete(key)
    process = site.start()
    process.expander.run_once({job_id: 100})
    until(lambda: process.expander.run_once({job_id: 100}) == 0 and not process.jobs.ids)
    assert site.emitted() == []
    with pytest.raises(ObjectNotFoundError):
        job_positions(site.objects, _files(site, job_id), range(10))


def _files(site: Site, job_id: UUID) -> Any:
    with site.engine.begin() as connection:
        return input_files(connection, job_row(connection, job_id))
