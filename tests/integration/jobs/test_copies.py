"""Goal: only the first of identical items is emitted, through crashes and appends."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from core.errors import LeaseLostError
from jobs.expansion.job_loads import OPEN
from jobs.expansion.load_cache import LoadCache
from jobs.expansion.result_partitions import ResultPartitions
from jobs.input.input_files import InputFile
from jobs.input.line_reader import Line, input_lines
from jobs.leasing import leases
from jobs.leasing.leases import Lease
from jobs.recovery.expiry import republish_copies
from jobs.recovery.re_emit import ReEmitter
from jobs.store.copies import store_copies
from jobs.tables.jobs import job_counters, job_cursors, jobs
from jobs.tables.retries import item_copies
from jobs.validation.validation_process import ValidationProcesses
from results.writer.day_partitions import DayPartitions
from results.writer.item_writer import ItemWriter
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import write_object
from storage.postgres.outbox import outbox
from tests.integration.jobs.expansion_process import ExpansionProcess
from tests.integration.jobs.log_reader import indexes
from tests.integration.jobs.rows import (
    add_running_job,
    add_tenant,
    claim_lease,
    database_away,
    execute,
    outbox_records,
    without_guards,
)
from tests.integration.jobs.test_appending import Site
from tests.integration.results.outcomes import outcome
from topics.clients.producer import RecordProducer
from topics.records.catalogue import RESULTS
from topics.records.records import CopiesDue
from topics.settings import KafkaSettings


def line(number: int, text: object) -> bytes:
    request = {
        "custom_id": f"id-{number}",
        "method": "POST",
        "url": "/v1/embeddings",
        "body": {"model": "small", "input": text},
    }
    return json.dumps(request).encode()


class Intake(ExpansionProcess):
    """An intake process and jobs whose items are texts."""

    def __init__(
        self, engine: sa.Engine, objects: LocalObjectStore, producer: RecordProducer
    ) -> None:
        super().__init__(engine, objects, producer)
        self.objects, self.producer = objects, producer

    def job(self, texts: list[Any], **columns: Any) -> UUID:
        lines = [line(number, text) + b"\n" for number, text in enumerate(texts)]
        write_object(self.objects, "in", b"".join(lines))
        with self.engine.begin() as connection:
            tenant_id = add_tenant(connection)
            return add_running_job(connection, tenant_id, len(texts), deduplicate=True, **columns)

    def lines(self, key: str) -> Iterator[Line]:
        with self.objects.read(key) as blocks:
            yield from input_lines(blocks, line_bytes_max=10**6)

    def lease(self, job_id: UUID) -> Lease:
        with self.engine.begin() as connection:
            return claim_lease(connection, "intake", jobs.c.id == job_id)

    def store(self, job_id: UUID) -> int:
        lease = self.lease(job_id)
        count = store_copies(self.engine, lease, [InputFile("in", 0)], self.lines)
        with self.engine.begin() as connection:
            leases.release(connection, lease)
        return count

    def job_cursor(self) -> tuple[int, int]:
        """Return the index and the number of copies below it, of the only job."""
        query = sa.select(job_cursors.c.item_index, job_cursors.c.copy_count)
        with self.engine.begin() as connection:
            item_index, copy_count = connection.execute(query).one()
        return item_index, copy_count


@pytest.fixture
def intake(
    engine: sa.Engine, objects: LocalObjectStore, producer: RecordProducer
) -> Iterator[Intake]:
    intake = Intake(engine, objects, producer)
    yield intake
    intake.jobs.close()


def copies(engine: sa.Engine) -> dict[int, int]:
    with engine.connect() as connection:
        rows = connection.execute(sa.select(item_copies).order_by(item_copies.c.item_index)).all()
    return {row.item_index: row.original_index for row in rows}


def test_only_originals_are_emitted_and_copies_are_not_outstanding(
    intake: Intake, kafka: KafkaSettings
) -> None:
    texts = ["a", "b", "a", "a", "c", "b", "d", "d", "d", "a"]
    job_id = intake.job(texts)
    assert intake.store(job_id) == 6
    assert copies(intake.engine) == {2: 0, 3: 0, 5: 1, 7: 6, 8: 6, 9: 0}
    intake.emit_all(at_once=3)

    assert indexes(kafka) == [0, 1, 4, 6]
    (load,) = intake.loads()
    assert (load.outstanding, load.remaining) == (4, 0)
    assert intake.job_cursor() == (10, 6)


def test_a_database_outage_skips_no_item(
    intake: Intake, kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = intake.job(["a", "b", "a", "c", "c", "d"])
    intake.store(job_id)
    intake.jobs.acquire([job_id], 10)

    with monkeypatch.context() as broken:
        broken.setattr("jobs.expansion.expander.find_copy_indexes", database_away)
        with pytest.raises(OperationalError):
            intake.expander.run_once({job_id: 4})
    assert intake.expander.run_once({job_id: 4}) == 3
    assert intake.expander.run_once({job_id: 4}) == 1

    assert indexes(kafka) == [0, 1, 3, 5]
    assert intake.job_cursor() == (6, 2)


def test_results_of_copies_do_not_free_the_window(intake: Intake) -> None:
    job_id = intake.job(["a", "b", "c", "a", "a", "a"])
    intake.store(job_id)
    execute(intake.engine, "UPDATE job_cursors SET item_index = 3")
    execute(intake.engine, "UPDATE job_counters SET succeeded = 4, copied = 3")
    (load,) = intake.loads()
    assert load.outstanding == 2


def test_only_lost_originals_are_re_emitted(intake: Intake, kafka: KafkaSettings) -> None:
    job_id = intake.job(["a", "b", "a", "b", "c"])
    intake.store(job_id)
    execute(intake.engine, sa.update(job_cursors).values(item_index=5, copy_count=2))
    ItemWriter(intake.engine, DayPartitions(intake.engine)).write({job_id: [outcome(0)]})
    emitter = ReEmitter(intake.engine, intake.objects, intake.producer, intake.leases)

    assert emitter.re_emit_job(job_id, sa.and_(OPEN, jobs.c.id == job_id)) == 2
    assert indexes(kafka) == [1, 4]


def test_storing_copies_is_repeatable_and_fenced(intake: Intake) -> None:
    job_id = intake.job([n % 7 for n in range(12_000)])
    late = intake.lease(job_id)
    assert store_copies(intake.engine, late, [InputFile("in", 0)], intake.lines) == 11_993
    execute(intake.engine, "UPDATE job_leases SET expires_at = now()")
    assert intake.store(job_id) == 11_993
    with pytest.raises(LeaseLostError):
        store_copies(intake.engine, late, [InputFile("in", 0)], intake.lines)

    found = copies(intake.engine)
    assert found == {n: n % 7 for n in range(7, 12_000)}
    assert all(one < other for one, other in pairwise(found))


def test_appended_items_are_copies_of_earlier_ones(
    engine: sa.Engine, objects: LocalObjectStore, processes: ValidationProcesses
) -> None:
    site = Site(engine, objects, processes)
    execute(engine, sa.update(jobs).values(deduplicate=True))
    site.append(*[line(n, f"a-{n % 4}") for n in range(4)], b"{}")
    site.append(*[line(n, f"a-{n % 4}") for n in range(6)])
    site.append(line(7, "a-9"), line(8, "a-9"), line(9, "a-0"))
    site.validator.run_once()

    assert site.states() == ["refused", "accepted", "accepted"]
    assert copies(engine) == {5: 0, 6: 1, 7: 2, 8: 3, 9: 0, 10: 1, 12: 11, 13: 0}
    with engine.begin() as connection:
        assert outbox_records(connection, RESULTS, CopiesDue) == [
            CopiesDue(site.job_id, 5, 11),
            CopiesDue(site.job_id, 11, 14),
        ]


def test_the_sweep_republishes_overdue_copies(intake: Intake) -> None:
    job_id = intake.job(["a", "b", "a", "b"])
    intake.store(job_id)

    def due_after(seconds: int, **counters: int) -> list[CopiesDue]:
        with intake.engine.begin() as connection:
            without_guards(connection)
            connection.execute(sa.delete(outbox))
            moment = sa.text(f"now() - interval '{seconds} s'")
            connection.execute(sa.update(job_counters).values(updated_at=moment, **counters))
            connection.execute(sa.update(jobs).values(created_at=moment))
        with LoadCache(intake.engine, ResultPartitions()).current() as loads:  # no guard marks it
            job_ids = list(loads.copies_left)
        republish_copies(intake.engine, job_ids, stall_limit_s=60)
        with intake.engine.begin() as connection:
            return outbox_records(connection, RESULTS, CopiesDue)

    execute(intake.engine, sa.update(job_cursors).values(item_index=4, copy_count=2))
    assert due_after(90, succeeded=1) == []  # an original is outstanding
    assert due_after(90, succeeded=2, copied=1) == []
    assert due_after(30, succeeded=3, copied=1) == []
    assert due_after(90, succeeded=3, copied=1) == [CopiesDue(job_id, 0, 4)]
    assert due_after(90, succeeded=3, copied=1) == []  # published a moment ago
