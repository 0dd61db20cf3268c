"""Batches without a log: the test writes their rows like the results writer."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any
from uuid import UUID

import httpx
import sqlalchemy as sa

from core.ids import JOB, new_uuid, public_id
from core.states import CloseReason, JobState
from jobs.input.input_files import InputFiles
from jobs.store.days import job_day
from jobs.store.files import RESULT_PURPOSE
from jobs.tables.jobs import job_cursors, jobs
from results.finaliser.input_custom_ids import CompleteCustomIds
from results.finaliser.item_rows import item_rows
from results.finaliser.line_provenance import read_line_tags
from results.finaliser.output_files import write_result_files
from results.writer.day_partitions import DayPartitions
from results.writer.item_writer import ItemWriter
from results.writer.job_closer import JobCloser
from results.writer.open_work import run_all
from results.writer.provenance import OutcomeProvenance, Provenance
from storage.objects.object_store import write_object
from tests.integration.api.sites import Site
from tests.integration.jobs.rows import add_file, add_job
from topics.records.records import ItemOutcome, JobClose, JobRef


def line(index: int) -> bytes:
    body = {"custom_id": f"request-{index}", "method": "POST", "url": "/v1/embeddings", "body": {}}
    return json.dumps(body).encode() + b"\n"


@dataclass
class RunningBatch:
    """A batch of a site's tenant."""

    site: Site
    job_id: UUID
    total: int

    @property
    def id(self) -> str:
        return public_id(JOB, self.job_id)

    @property
    def path(self) -> str:
        return f"/v1/batches/{self.id}"

    @property
    def row(self) -> sa.Row[Any]:
        with self.site.engine.connect() as connection:
            return connection.execute(sa.select(jobs).where(jobs.c.id == self.job_id)).one()

    def item_id(self, index: int) -> str:
        return f"batch_req_{self.job_id.hex}{index:08x}"

    def write(self, *outcomes: ItemOutcome) -> None:
        """One commit of the writer."""
        engine = self.site.engine
        ItemWriter(engine, DayPartitions(engine)).write({self.job_id: list(outcomes)})

    def run(self, ran: Provenance, *outcomes: ItemOutcome) -> None:
        """One commit of the writer, of a record that says what ran its items."""
        engine, row, provenance = self.site.engine, self.row, OutcomeProvenance()
        job = JobRef(
            self.job_id,
            job_day(row.created_at),
            row.tenant_id,
            ran.model,
            ran.model_version,
            row.pool,
            row.endpoint,
            row.input_key,
            0.0,
            base_version=ran.base_version,
        )
        provenance.add(job, ran.engine, outcomes)
        ItemWriter(engine, DayPartitions(engine)).write({self.job_id: list(outcomes)}, provenance)

    def close(self, reason: CloseReason = CloseReason.CANCELLED, slice_items: int = 1000) -> None:
        engine = self.site.engine
        if reason is CloseReason.CANCELLED:
            self.set(state="cancelling", close_reason=reason.value, cancelling_at=sa.func.now())
        closer = JobCloser(engine, DayPartitions(engine), slice_items=slice_items)
        assert run_all(closer.close_steps(JobClose(self.job_id, 0, reason)), Event())

    def emit(self, count: int) -> None:
        """Say that intake has put so many items on the log."""
        with self.site.engine.begin() as connection:
            connection.execute(
                sa.update(job_cursors)
                .where(job_cursors.c.job_id == self.job_id)
                .values(item_index=count)
            )

    def set(self, **columns: Any) -> None:
        with self.site.engine.begin() as connection:
            connection.execute(sa.update(jobs).where(jobs.c.id == self.job_id).values(**columns))

    def finalise(self) -> None:
        """Write the files and end the job, as the finaliser does."""
        engine, store, row = self.site.engine, self.site.objects, self.row
        rows = item_rows(
            engine,
            self.job_id,
            day=job_day(row.created_at),
            total_count=self.total,
            check=lambda: None,
        )
        names = CompleteCustomIds(store, InputFiles(row.input_key, first_bytes=row.input_bytes))
        with engine.connect() as connection:
            tags = read_line_tags(connection, self.job_id)
        written = write_result_files(
            store, rows, job_id=self.job_id, epoch=1, custom_ids=names, tags=tags
        )
        with engine.begin() as connection:
            files = {}
            for name, stored in (("output", written.output), ("error", written.error)):
                if stored is not None:
                    file = add_file(
                        connection,
                        row.tenant_id,
                        purpose=RESULT_PURPOSE,
                        filename=f"{name}.jsonl",
                        size_bytes=stored.size_bytes,
                        object_key=stored.key,
                        sha256=stored.sha256_hex,
                    )
                    files[f"{name}_file_id"] = file.id
            was_cancelled = row.state == JobState.CANCELLING
            state = JobState.CANCELLED if was_cancelled else JobState.COMPLETED
            one = sa.update(jobs).where(jobs.c.id == self.job_id)
            connection.execute(one.values(state=state.value, **files))


def add_batch(site: Site, total: int, **columns: Any) -> RunningBatch:
    """A batch of the site's first tenant whose file was validated."""
    content = b"".join(line(index) for index in range(total))
    given: dict[str, Any] = {
        "state": "in_progress",
        "total_count": total,
        "model": "org/small",
        "model_version": "1",
        "pool": "small",
        "in_progress_at": sa.func.now(),
        "input_key": f"files/{new_uuid().hex}",
        "input_bytes": len(content),
    }
    given |= columns
    write_object(site.objects, given["input_key"], content)
    with site.engine.begin() as connection:
        job_id = add_job(connection, site.tenant_id, cursor={"item_index": total}, **given)
    return RunningBatch(site, job_id, total)


def lines(answer: httpx.Response) -> list[dict[str, Any]]:
    """Return the results in an answer of JSON Lines."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(text) for text in answer.text.split("\n") if text]


@dataclass
class Followed:
    """One event of a stream."""

    name: str
    id: int
    data: dict[str, Any]


@contextmanager
def following(
    client: httpx.Client, path: str, **headers: str
) -> Iterator[Iterator[Followed | None]]:
    """Open a stream of results; a comment is None."""
    headers = {"accept": "text/event-stream"} | headers
    with client.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield _events(answer)


def _events(answer: httpx.Response) -> Iterator[Followed | None]:
    rest = b""
    for block in answer.iter_bytes():
        *whole, rest = (rest + block).split(b"\n\n")
        for text in whole:
            if text.startswith(b":"):
                yield None
                continue
            fields = dict(field.split(b": ", 1) for field in text.split(b"\n"))
            data = json.loads(fields[b"data"])
            yield Followed(fields.get(b"event", b"").decode(), int(fields[b"id"]), data)
