"""Goal: each row names what ran its item, and the counts and the bill are those of the rows."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.ids import new_uuid
from core.states import CloseReason
from jobs.tables.retries import item_copies
from results.retention.batch_removal import BatchDataRemoval
from results.retention.deletion import delete_batch
from results.writer.copied_results import CopyWriter
from results.writer.day_partitions import DayPartitions
from results.writer.item_writer import ItemWriter
from results.writer.open_work import run_all
from results.writer.provenance import OutcomeProvenance, Provenance
from storage.objects.local_object_store import LocalObjectStore
from storage.postgres.items import items, job_provenance
from tenancy.tables import usage_ledger
from tests.integration.results.outcomes import (
    add_running_job,
    assert_totals_agree,
    close,
    count,
    execute,
    failed,
    fetch,
    item_table,
    job,
    outcome,
)
from topics.records.records import ItemOutcome, JobRef

NEVER = threading.Event()
SMALL = Provenance("small", "1", "", "engine-a")
OTHER_ENGINE = SMALL._replace(engine="engine-b")
ADAPTER = Provenance("small:law", "2", "1", "engine-a")
MIXED = {"small": {"version": "1"}, "small:law": {"version": "2", "base_version": "1"}}

Records = list[tuple[Provenance, list[ItemOutcome]]]


def ref(job_id: UUID, found: Provenance) -> JobRef:
    return JobRef(
        job_id, 0, new_uuid(), found.model, found.model_version, "pool", "/v1/embeddings", "", 0.0,
        base_version=found.base_version,
    )  # fmt: skip


def write(writer: ItemWriter, job_id: UUID, records: Records) -> None:
    """Write records in one transaction, as the role groups them."""
    provenance, group = OutcomeProvenance(), []
    for found, outcomes in records:
        provenance.add(ref(job_id, found), found.engine, outcomes)
        group += outcomes
    writer.write({job_id: group}, provenance)


def counted(engine: sa.Engine, job_id: UUID) -> dict[Provenance, int]:
    rows = fetch(engine, sa.select(job_provenance).where(job_provenance.c.job_id == job_id))
    return {
        Provenance(row.model, row.model_version, row.base_version, row.engine): row.item_count
        for row in rows
    }


def of_rows(engine: sa.Engine, job_id: UUID) -> dict[int, Provenance | None]:
    """The provenance that the row of each item names."""
    query = (
        sa.select(items.c.item_index, job_provenance)
        .select_from(
            items.outerjoin(
                job_provenance,
                sa.and_(
                    job_provenance.c.job_id == items.c.job_id,
                    job_provenance.c.number == items.c.provenance,
                ),
            )
        )
        .where(items.c.job_id == job_id)
    )
    return {
        row.item_index: None
        if row.number is None
        else Provenance(row.model, row.model_version, row.base_version, row.engine)
        for row in fetch(engine, query)
    }


def assert_counts_are_exact(engine: sa.Engine, job_id: UUID) -> None:
    named = Counter(found for found in of_rows(engine, job_id).values() if found is not None)
    assert counted(engine, job_id) == named
    numbers = fetch(
        engine, sa.select(job_provenance.c.number).where(job_provenance.c.job_id == job_id)
    )
    assert sorted(number for (number,) in numbers) == list(range(1, len(numbers) + 1))


def billed(engine: sa.Engine, job_id: UUID) -> dict[tuple[str, str], tuple[int, int]]:
    """Executed and copied items on the ledger by model and version."""
    ledger = usage_ledger.c
    query = (
        sa.select(ledger.model, ledger.model_version)
        .add_columns(sa.func.sum(ledger.item_count).label("executed"))
        .add_columns(sa.func.sum(ledger.copied_count).label("copied"))
        .where(ledger.job_id == job_id)
        .group_by(ledger.model, ledger.model_version)
    )
    return {
        (row.model, row.model_version): (int(row.executed), int(row.copied))
        for row in fetch(engine, query)
    }


@given(st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_redelivery_in_any_groups_counts_each_row_once(engine: sa.Engine, data: Any) -> None:
    total = 12
    job_id = add_running_job(engine, total, models=MIXED)
    origin = st.sampled_from([SMALL, OTHER_ENGINE, ADAPTER])
    indexes = st.lists(st.integers(0, total - 1), min_size=1, max_size=6)
    record = st.tuples(origin, indexes)
    groups = data.draw(st.lists(st.lists(record, min_size=1, max_size=4), min_size=1, max_size=6))
    writer = ItemWriter(engine, DayPartitions(engine))
    first: dict[int, Provenance] = {}

    for group in groups:
        write(writer, job_id, [(o, [outcome(n) for n in numbers]) for o, numbers in group])
        for found, numbers in group:
            for number in numbers:
                first.setdefault(number, found)
    for group in groups:  # a new owner of the partition reads them again
        new = ItemWriter(engine, DayPartitions(engine))
        write(new, job_id, [(o, [outcome(n) for n in numbers]) for o, numbers in group])

    assert of_rows(engine, job_id) == first
    assert_counts_are_exact(engine, job_id)
    by_model = Counter((found.model, found.model_version) for found in first.values())
    assert billed(engine, job_id) == {key: (n, 0) for key, n in by_model.items()}
    assert_totals_agree(engine, job_id)


def test_two_writers_at_once_share_numbers_and_counts(engine: sa.Engine) -> None:
    total = 300
    job_id = add_running_job(engine, total, models=MIXED)
    start = threading.Barrier(2)

    def run(order: list[int]) -> None:
        writer = ItemWriter(engine, DayPartitions(engine))
        start.wait()
        for number in order:
            origin = (SMALL, OTHER_ENGINE, ADAPTER)[number % 3]
            write(writer, job_id, [(origin, [outcome(number)])])

    with ThreadPoolExecutor(2) as threads:
        done = [threads.submit(run, o) for o in (list(range(total)), list(range(total))[::-1])]
        for one in done:
            one.result()

    assert len(of_rows(engine, job_id)) == total
    assert counted(engine, job_id) == {SMALL: 100, OTHER_ENGINE: 100, ADAPTER: 100}
    assert_counts_are_exact(engine, job_id)
    assert billed(engine, job_id) == {("small", "1"): (200, 0), ("small:law", "2"): (100, 0)}


def test_final_outcome_of_several_in_one_group_keeps_its_own_engine(engine: sa.Engine) -> None:
    job_id = add_running_job(engine, 3)
    writer = ItemWriter(engine, DayPartitions(engine))
    again = {"status_code": 500, "retryable": True}

    write(writer, job_id, [
        (SMALL, [failed(0, **again), failed(1, attempt=99, **again)]),
        (OTHER_ENGINE, [outcome(0), failed(1, attempt=99)]),
    ])  # fmt: skip

    # Of item 0 the failure had attempts left; of item 1 the first failure was its last one.
    assert of_rows(engine, job_id) == {0: OTHER_ENGINE, 1: SMALL}
    assert_counts_are_exact(engine, job_id)


def test_items_that_did_not_run_have_no_provenance(engine: sa.Engine) -> None:
    job_id = add_running_job(engine, 4)
    writer = ItemWriter(engine, DayPartitions(engine))
    unknown = SMALL._replace(engine="")

    write(writer, job_id, [
        (unknown, [outcome(0), failed(1, status_code=0, body=b"", error_code="record_unreadable")]),
        (unknown, [failed(2)]),
    ])  # fmt: skip
    assert close(engine, job_id, CloseReason.CANCELLED)

    assert of_rows(engine, job_id) == {0: unknown, 1: None, 2: unknown, 3: None}
    assert_counts_are_exact(engine, job_id)


def test_refused_result_keeps_the_engine_that_made_it(engine: sa.Engine) -> None:
    job_id = add_running_job(engine, 2)
    broken = outcome(1, custom_id="a\0b")

    write(ItemWriter(engine, DayPartitions(engine)), job_id, [
        (SMALL, [outcome(0)]), (OTHER_ENGINE, [broken])
    ])  # fmt: skip

    assert of_rows(engine, job_id) == {0: SMALL, 1: OTHER_ENGINE}
    assert_counts_are_exact(engine, job_id)


def test_ledger_of_a_job_with_one_model_names_the_model_of_the_job(engine: sa.Engine) -> None:
    job_id = add_running_job(engine, 2)
    renamed = SMALL._replace(model="an older name")

    write(ItemWriter(engine, DayPartitions(engine)), job_id, [(renamed, [outcome(0), outcome(1)])])

    assert billed(engine, job_id) == {("small", "1"): (2, 0)}


def test_copies_have_the_provenance_and_the_model_of_their_original(engine: sa.Engine) -> None:
    job_id = add_running_job(engine, 7, deduplicate=True, models=MIXED)
    copies = {2: 0, 3: 1, 4: 1, 5: 0}
    execute(
        engine,
        item_copies.insert().values(
            [
                {"job_id": job_id, "item_index": i, "original_index": o, "custom_id": f"{i}"}
                for i, o in copies.items()
            ]
        ),
    )
    writer, copier = ItemWriter(engine, DayPartitions(engine)), CopyWriter(engine, slice_items=2)
    records: Records = [(SMALL, [outcome(0)]), (ADAPTER, [outcome(1)])]

    for _ in range(2):
        write(writer, job_id, records)
        assert run_all(copier.copy_steps({job_id: [outcome(0), outcome(1)]}, [job_id]), NEVER)
    writer.write({job_id: [outcome(6)]})  # of an older release

    assert of_rows(engine, job_id) == {
        **dict.fromkeys((0, 2, 5), SMALL), **dict.fromkeys((1, 3, 4), ADAPTER), 6: None
    }  # fmt: skip
    assert_counts_are_exact(engine, job_id)
    assert billed(engine, job_id) == {("small", "1"): (2, 2), ("small:law", "2"): (1, 2)}
    assert_totals_agree(engine, job_id)
    assert job(engine, job_id)["state"] == "finalizing"
    assert [row.copied_from for row in item_table(engine, job_id)][2:6] == [*copies.values()]


def test_deletion_removes_what_ran_the_items(engine: sa.Engine, store: LocalObjectStore) -> None:
    job_id = add_running_job(engine, 1)
    write(ItemWriter(engine, DayPartitions(engine)), job_id, [(SMALL, [outcome(0)])])
    execute(engine, sa.text("UPDATE jobs SET state = 'completed', completed_at = now()"))
    with engine.begin() as connection:
        tenant_id = job(engine, job_id)["tenant_id"]
        delete_batch(connection, tenant_id, job_id, key_id=new_uuid())

    BatchDataRemoval(engine, store).run_once(100)

    assert count(engine, job_provenance) == count(engine, items) == 0
    assert billed(engine, job_id) == {("small", "1"): (1, 0)}
