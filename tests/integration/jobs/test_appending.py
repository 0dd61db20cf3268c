"""Goal: appended files count once they are validated, in order, and a job waits for its seal."""

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from core.bodies.token_estimates import BYTES_PER_TOKEN
from core.clock import SystemClock
from core.ids import new_uuid
from jobs import metrics
from jobs.errors import InvalidFieldError, UploadedFileNotFoundError
from jobs.expansion.job_loads import OPEN
from jobs.input.input_files import appended_files
from jobs.input.token_sums import LINE_OVERHEAD_BYTES
from jobs.leasing.active_leases import ActiveLeases
from jobs.leasing.lease_queue import LeaseQueue
from jobs.recovery.re_emit import ReEmitter
from jobs.settings import IntakeSettings
from jobs.store.batches import find_job
from jobs.store.controls import APPENDED_MAX, append_file, seal_job
from jobs.tables.files import job_inputs
from jobs.tables.jobs import job_cursors, job_leases, jobs
from jobs.validation.append_validator import ROLE, AppendValidator
from jobs.validation.validation_process import ValidationProcesses
from jobs.validation.validator import LeasedValidation
from jobs.validation.verdicts import APPEND_DUE
from results.writer.day_partitions import DayPartitions
from results.writer.item_writer import ItemWriter
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import write_object
from tests.integration.jobs.expansion_process import ExpansionProcess
from tests.integration.jobs.log_reader import chunks_by_partition, indexes
from tests.integration.jobs.rows import (
    add_file,
    add_running_job,
    add_tenant,
    database_away,
    execute,
    job_row,
)
from tests.integration.results.outcomes import outcome
from topics.clients.producer import RecordProducer
from topics.settings import KafkaSettings


def line(custom_id: str, *, model: str = "small") -> bytes:
    request = {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/embeddings",
        "body": {"model": model, "input": custom_id},
    }
    return json.dumps(request).encode()


class Site:
    """A tenant with an unsealed job, and a validator of appended files."""

    def __init__(
        self, engine: sa.Engine, objects: LocalObjectStore, processes: ValidationProcesses
    ) -> None:
        self.engine, self.objects, self.processes = engine, objects, processes
        self.stop = threading.Event()
        self.leases = ActiveLeases(engine, role=ROLE, holder="a", ttl_s=60)
        settings = IntakeSettings(job_items_max=50)
        self.validation = LeasedValidation(objects, self.leases, settings, self.stop, processes)
        self.validator = self.validator_of(sa.true())
        with engine.begin() as connection:
            self.tenant_id = add_tenant(connection)
        self.job_id = self.job("a", 5)

    def validator_of(self, size: sa.ColumnElement[bool]) -> AppendValidator:
        queue = LeaseQueue(self.engine, self.leases, sa.and_(APPEND_DUE, size), SystemClock())
        return AppendValidator(self.engine, queue, self.validation)

    def job(self, name: str, count: int, **columns: Any) -> UUID:
        self.store(name, [line(f"{name}-{n}") for n in range(count)])
        unsealed = {"input_key": name, "sealed": False, "total_final": False}
        with self.engine.begin() as connection:
            return add_running_job(connection, self.tenant_id, count, **(unsealed | columns))

    def store(self, key: str, lines: list[bytes]) -> None:
        write_object(self.objects, key, b"\n".join(lines))  # the last line has no newline

    def file(self, lines: list[bytes], *, purpose: str = "batch") -> UUID:
        size_bytes = len(b"\n".join(lines))
        with self.engine.begin() as connection:
            file = add_file(connection, self.tenant_id, purpose=purpose, size_bytes=size_bytes)
        self.store(file.object_key, lines)
        file_id: UUID = file.id
        return file_id

    def append(self, *lines: bytes) -> None:
        file_id = self.file([*lines])
        with self.engine.begin() as connection:
            append_file(connection, self.tenant_id, self.job_id, file_id)

    def control(self, operation: Callable[..., Any], *given: object, **named: object) -> Any:
        with self.engine.begin() as connection:
            return operation(connection, self.tenant_id, self.job_id, *given, **named)

    def row(self) -> sa.Row[Any]:
        row: sa.Row[Any] = self.control(find_job)
        return row

    def states(self) -> list[str]:
        return [file["state"] for file in self.row().appended or ()]

    def errors(self) -> list[tuple[str, int | None]]:
        (*_, last) = self.control(find_job, with_errors=True).appended
        return [(error["code"], error["line"]) for error in last["errors"]]


@pytest.fixture
def site(engine: sa.Engine, objects: LocalObjectStore, processes: ValidationProcesses) -> Site:
    return Site(engine, objects, processes)


@pytest.fixture
def intake(site: Site, producer: RecordProducer) -> Iterator[ExpansionProcess]:
    intake = ExpansionProcess(site.engine, site.objects, producer)
    yield intake
    intake.jobs.close()


def test_items_of_appended_files_follow_in_order(
    site: Site, kafka: KafkaSettings, intake: ExpansionProcess
) -> None:
    intake.emit_all()
    site.append(*(line(f"b-{n}") for n in range(7)))
    site.append(line("c-0"))
    site.validator.run_once()
    assert site.states() == ["accepted", "accepted"]
    assert site.row().total_count == 13
    intake.emit_all(at_once=3)
    found = sorted(
        (item.index, item.custom_id, chunk.job.input_key == "a", item.offset)
        for chunks in chunks_by_partition(kafka).values()
        for chunk in chunks
        for item in chunk.items
    )
    names = [*(f"a-{n}" for n in range(5)), *(f"b-{n}" for n in range(7)), "c-0"]
    assert [(index, name) for index, name, *_ in found] == list(enumerate(names))
    assert [is_first for _, _, is_first, _ in found] == [True] * 5 + [False] * 8
    assert [offset == 0 for *_, offset in found] == [index in {0, 5, 12} for index in range(13)]


def test_lost_items_of_every_file_are_re_emitted(
    site: Site, kafka: KafkaSettings, producer: RecordProducer
) -> None:
    site.append(*(line(f"b-{n}") for n in range(4)))
    site.validator.run_once()
    execute(site.engine, sa.update(job_cursors).values(item_index=9))
    done = [0, 5, 6]
    writer = ItemWriter(site.engine, DayPartitions(site.engine))
    writer.write({site.job_id: [outcome(n) for n in done]})
    leases = ActiveLeases(site.engine, role="intake", holder="a", ttl_s=60)
    emitter = ReEmitter(site.engine, site.objects, producer, leases)
    assert emitter.re_emit_job(site.job_id, sa.and_(OPEN, jobs.c.id == site.job_id)) == 6
    assert indexes(kafka) == [1, 2, 3, 4, 7, 8]


def test_an_id_of_an_earlier_file_is_a_duplicate(site: Site) -> None:
    site.append(line("b-0"), line("b-1"))
    site.append(line("c-0"), line("a-3"), line("c-1"), line("b-1"), line("c-0"))
    site.validator.run_once()
    assert site.states() == ["accepted", "refused"]
    assert site.errors() == [("duplicate_custom_id", n) for n in (2, 4, 5)]
    assert site.row().total_count == 7
    assert site.row().state == "in_progress"


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([line("b-0", model="other")], "model_not_found"),
        ([b"not json"], "invalid_json_line"),
        ([line(f"b-{n}") for n in range(46)], "too_many_tasks"),
        ([line("b-0")], "file_not_found"),
    ],
)
def test_an_invalid_or_missing_file_does_not_change_its_job(
    site: Site, lines: list[bytes], code: str
) -> None:
    site.append(*lines)
    if code == "file_not_found":
        with site.engine.begin() as connection:
            site.objects.delete(connection.scalars(sa.select(job_inputs.c.object_key)).one())
    site.validator.run_once()
    assert site.states() == ["refused"]
    assert [found for found, _ in site.errors()] == [code]
    assert (site.row().total_count, site.row().state) == (5, "in_progress")


@pytest.mark.parametrize("raw", [b"[" * 5000 + b"]" * 5000, b"{"])
def test_a_job_with_unreadable_earlier_lines_is_set_aside_alone(
    site: Site, caplog: pytest.LogCaptureFixture, raw: bytes
) -> None:
    site.append(line("b-0"))
    other = Site(site.engine, site.objects, site.processes)
    other.job_id = other.job("other", 5)
    other.append(line("b-0"))
    site.store("a", [b'{"secret": %s, "custom_id": "a"}' % raw])
    before = metrics.JOB_FAILURES._value.get()
    site.validator.run_once()
    assert (site.states(), other.states()) == (["validating"], ["accepted"])
    assert metrics.JOB_FAILURES._value.get() == before + 1
    assert site.leases.count == 0
    assert "secret" not in caplog.text


def test_an_unexpected_failure_does_not_stop_the_role(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    site.append(line("b-0"))
    monkeypatch.setattr("jobs.validation.validation_task.validate_file", broken)
    site.validator.run_once()
    assert (site.states(), site.leases.count) == (["validating"], 0)
    monkeypatch.undo()
    execute(site.engine, sa.update(job_leases).values(expires_at=sa.func.now()))
    site.validator.run_once()
    assert site.states() == ["accepted"]


def test_a_database_outage_is_raised(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.append(line("b-0"))
    monkeypatch.setattr("jobs.validation.validation_task.validate_file", database_away)
    with pytest.raises(OperationalError):
        site.validator.run_once()
    assert site.leases.count == 0


@pytest.mark.parametrize("is_valid", [True, False])
def test_a_job_completes_only_after_its_seal_and_its_last_file(site: Site, is_valid: bool) -> None:
    writer = ItemWriter(site.engine, DayPartitions(site.engine))
    writer.write({site.job_id: [outcome(n) for n in range(5)]})
    assert site.row().state == "in_progress"
    site.append(line("b-0") if is_valid else b"no")
    site.control(seal_job)
    assert (site.row().sealed, site.row().total_final) == (True, False)
    assert site.row().state == "in_progress"
    site.validator.run_once()
    assert (site.row().total_count, site.row().total_final) == (5 + is_valid, True)
    if is_valid:
        assert site.row().state == "in_progress"
        writer.write({site.job_id: [outcome(5)]})
    assert site.row().state == "finalizing"
    assert site.states() == ["accepted" if is_valid else "refused"]


def test_invalid_appends_are_rejected(site: Site) -> None:
    with pytest.raises(UploadedFileNotFoundError):
        site.control(append_file, new_uuid())
    with pytest.raises(InvalidFieldError):
        site.control(append_file, site.file([], purpose="evals"))
    file_id = site.file([line("b-0")])
    for _ in range(APPENDED_MAX):
        site.control(append_file, file_id)
    with pytest.raises(InvalidFieldError):
        site.control(append_file, file_id)


def test_a_stopped_validator_leaves_files_to_other_processes(site: Site) -> None:
    site.append(line("b-0"))
    site.stop.set()
    site.validator.run_once()
    assert site.states() == ["validating"]


GROWING: list[dict[str, Any]] = [
    {"total_count": 5},
    {"total_count": None},
    {"settled_at": sa.func.now()},
]
FINAL: list[dict[str, Any]] = [{"total_count": 7}, {"sealed": False}, {"total_final": False}]


def test_postgres_lets_a_total_grow_until_it_is_final(site: Site) -> None:
    for statement, refused in (
        ("UPDATE jobs SET total_count = 6", GROWING),
        ("UPDATE jobs SET sealed = true, total_final = true", FINAL),
    ):
        execute(site.engine, statement)
        for columns in refused:
            with pytest.raises(sa.exc.IntegrityError):
                execute(site.engine, sa.update(jobs).values(**columns))
    with site.engine.begin() as connection:
        assert job_row(connection, site.job_id).total_count == 6
        assert appended_files(connection, [site.job_id]) == {}


def test_the_tokens_of_an_appended_file_are_added_unless_those_before_are_unknown(
    site: Site,
) -> None:
    site.append(line("b-0"))
    site.validator.run_once()
    assert site.states() == ["accepted"]
    assert site.row().estimated_prompt_tokens is None
    known = sa.update(jobs).values(estimated_prompt_tokens=100, estimated_output_tokens=50)
    execute(site.engine, known)
    site.append(line("c-0"), line("c-1"))
    site.append(line("d-0"), line("d-0"))  # refused
    site.validator.run_once()
    assert site.states() == ["accepted", "accepted", "refused"]
    added = 2 * ((len(line("c-0")) - LINE_OVERHEAD_BYTES) // BYTES_PER_TOKEN)
    assert site.row().estimated_prompt_tokens == 100 + added
    assert site.row().estimated_output_tokens == 50
