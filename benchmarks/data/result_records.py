"""Result records in the orders of a redelivery, the rows of their job, a check of its result."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from benchmarks.data.input_files import CHAT, chat_answer, custom_id
from benchmarks.runs import VoidRunError
from core.ids import new_uuid
from core.outcomes import Outcome
from jobs.tables.files import files
from jobs.tables.jobs import job_counters, job_cursors, jobs
from results.settings import WriterSettings
from storage.postgres.items import items
from tenancy.tables import tenants
from topics.records.records import ItemOutcome

RECORD_ITEMS = 100
GROUP_ITEMS = WriterSettings().group_items_max
NEW_PER_REPEAT = 4
"""New records for each redelivered one: a fifth of all records is redelivered."""

STAGES_MS = (20, 400, 1900, 50)  # of a row: queue, batch wait, execution, result
_ENDED_MS = 1_795_000_000_000
_BODIES = 1000
_BODY_BYTES = 1024

Record = Sequence[ItemOutcome]
Group = list[ItemOutcome]
"""The items of one transaction."""


def bodies() -> list[bytes]:
    """Return bodies of 1 KB; many rows share one, which makes no difference to the database."""
    return [(chat_answer(i) + b" " * _BODY_BYTES)[:_BODY_BYTES] for i in range(_BODIES)]


def records(results: int) -> list[Record]:
    """Return the new records of `results` results in all, redelivered ones included."""
    new = results // RECORD_ITEMS * NEW_PER_REPEAT // (NEW_PER_REPEAT + 1)
    body = bodies()
    return [
        [
            ItemOutcome(
                index=index,
                custom_id=custom_id(index),
                outcome=Outcome.SUCCEEDED,
                status_code=200,
                body=body[index % _BODIES],
                input_tokens=230,
                output_tokens=160,
                queue_ms=STAGES_MS[0],
                batch_wait_ms=STAGES_MS[1],
                execution_ms=STAGES_MS[2],
                ended_ms=_ENDED_MS,
            )
            for index in range(first, first + RECORD_ITEMS)
        ]
        for first in range(0, new * RECORD_ITEMS, RECORD_ITEMS)
    ]


def spread(new: Sequence[Record]) -> Iterator[Record]:
    """Yield every record, and after each fourth the first of these four again."""
    for position, record in enumerate(new, start=1):
        yield record
        if position % NEW_PER_REPEAT == 0:
            yield new[position - NEW_PER_REPEAT]


def burst(new: Sequence[Record]) -> Iterator[Record]:
    """Yield every record, and halfway the quarter before again, as after a crash."""
    half, quarter = len(new) // 2, len(new) // NEW_PER_REPEAT
    yield from new[:half]
    yield from new[half - quarter : half]
    yield from new[half:]


ORDERS: dict[str, Callable[[Sequence[Record]], Iterator[Record]]] = {
    "spread": spread,
    "burst": burst,
}


def group_records(order: Iterator[Record]) -> list[Group]:
    """Return transactions as full as the writer's."""
    groups: list[Group] = [[]]
    for record in order:
        if len(groups[-1]) + len(record) > GROUP_ITEMS:
            groups.append([])
        groups[-1] += record
    return groups


def plain_rows(results: int, job_id: UUID, day: int) -> list[tuple[Any, ...]]:
    """Return as many rows as there are results, ready for COPY, with unique keys."""
    body = bodies()
    job = job_id.bytes
    absent = (None, None)
    return [
        (
            *(job, day, index, 1, 200, 1, 230, 160, 0, 0, custom_id(index)),
            *(*absent, body[index % _BODIES], None),
            *STAGES_MS,
            1,
        )
        for index in range(results)
    ]


def add_job(engine: sa.Engine, *, total_count: int) -> UUID:
    """Add a job in progress with its tenant, file, cursor and counters."""
    tenant_id, file_id, job_id = new_uuid(), new_uuid(), new_uuid()
    key = f"files/{file_id.hex}"
    with engine.begin() as connection:
        connection.execute(tenants.insert().values(id=tenant_id, name=tenant_id.hex))
        connection.execute(
            files.insert().values(
                id=file_id,
                tenant_id=tenant_id,
                purpose="batch",
                filename="input.jsonl",
                object_key=key,
                size_bytes=0,
                sha256="",
            )
        )
        connection.execute(
            jobs.insert().values(
                id=job_id,
                tenant_id=tenant_id,
                state="in_progress",
                endpoint=CHAT,
                input_file_id=file_id,
                input_key=key,
                input_bytes=0,
                completion_window="24h",
                model="simulated",
                model_version="1",
                pool="simulated",
                total_count=total_count,
                expires_at=sa.text("now() + interval '1 day'"),
            )
        )
        connection.execute(job_cursors.insert().values(job_id=job_id))
        connection.execute(job_counters.insert().values(job_id=job_id))
    return job_id


def check_settled(engine: sa.Engine, job_id: UUID, total_count: int) -> None:
    """Raise VoidRunError unless every item has a row, is counted once, and the job is settled."""
    with engine.connect() as connection:
        rows = connection.scalar(
            sa.select(sa.func.count()).select_from(items).where(items.c.job_id == job_id)
        )
        succeeded = connection.scalar(
            sa.select(job_counters.c.succeeded).where(job_counters.c.job_id == job_id)
        )
        settled_at = connection.scalar(sa.select(jobs.c.settled_at).where(jobs.c.id == job_id))
    if rows != total_count or succeeded != total_count or settled_at is None:
        raise VoidRunError(f"{rows} rows, {succeeded} counted, of {total_count} items")
