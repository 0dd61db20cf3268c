"""Goal: rows are read in order and bounded pages, without transactions that wait for a store."""

import subprocess
import sys
import time
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
import sqlalchemy as sa
from pydantic import SecretStr

from core.clock import SystemClock
from core.states import JobState
from jobs.store.days import job_day
from jobs.tables.jobs import jobs
from results.finaliser import item_rows as pages
from results.finaliser.finalisation import finalise
from results.finaliser.item_rows import CHUNK_ROWS, PAGE_ITEMS, PAGE_OPTIONS, READ_ITEMS, item_rows
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import ObjectBlocks, write_object
from storage.postgres.engines import create_engine
from storage.postgres.settings import DatabaseSettings
from tests.integration.results.outcomes import (
    add_running_job,
    execute,
    item_table,
    job,
    outcome,
    settle,
)
from tests.integration.results.test_finalisation import acquire_lease, always, lines
from topics.records.records import ItemOutcome

IDLE_S = 0.1


def settled(engine: sa.Engine, *outcomes: ItemOutcome) -> tuple[UUID, int]:
    """Add a settled job of these items; return it and its day."""
    job_id = settle(engine, *outcomes)
    return job_id, item_table(engine, job_id)[0].job_day


def test_rows_are_read_by_index_without_a_sort(engine: sa.Engine) -> None:
    job_id, day = settled(engine, *map(outcome, range(2000)))
    query = READ_ITEMS.replace("%b", "{}").format(day, f"'{job_id}'", 500, 900)
    with engine.connect() as connection:
        connection.execute(sa.text("ANALYZE items"))
        connection.exec_driver_sql(PAGE_OPTIONS)
        plan = "\n".join(connection.scalars(sa.text(f"EXPLAIN {query}")))

    assert "Index Scan" in plan
    assert "Sort" not in plan
    assert "Seq Scan" not in plan


class SlowObjects(LocalObjectStore):
    """Reads slower than the idle timeout of transactions."""

    def read(self, key: str, *, offset: int = 0, length: int | None = None) -> ObjectBlocks:
        time.sleep(4 * IDLE_S)
        return super().read(key, offset=offset, length=length)


def test_no_transaction_is_open_between_rows(
    database_url: str, engine: sa.Engine, tmp_path: Path
) -> None:
    store = SlowObjects(tmp_path / "objects", clock=SystemClock())
    write_object(store, "bodies/large", b"{}")
    job_id = settle(engine, *[outcome(n, body=b"", body_key="bodies/large") for n in range(3)])
    strict = create_engine(
        DatabaseSettings(url=SecretStr(database_url), idle_transaction_timeout_s=IDLE_S),
        application_name="strict",
    )

    assert finalise(strict, store, acquire_lease(engine), check=always) is JobState.COMPLETED

    strict.dispose()
    assert len(lines(engine, store, job(engine, job_id)["output_file_id"])) == 3


@pytest.mark.parametrize(
    ("page_bytes", "count"), [(1000, 2 * CHUNK_ROWS + 1), (pages.PAGE_BYTES, 2 * PAGE_ITEMS + 1)]
)
def test_page_is_bounded_and_its_lease_checked(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch, page_bytes: int, count: int
) -> None:
    monkeypatch.setattr(pages, "PAGE_BYTES", page_bytes)
    job_id, day = settled(engine, *map(outcome, range(count)))
    looks: list[int] = []

    rows = item_rows(engine, job_id, day=day, total_count=count, check=lambda: looks.append(1))

    assert [row.item_index for row in rows] == list(range(count))
    assert len(looks) == 3


def test_only_the_first_page_of_large_rows_is_cancelled(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts: list[object] = []
    cancel = psycopg.Connection._try_cancel
    monkeypatch.setattr(
        psycopg.Connection, "_try_cancel", lambda c, **kw: cuts.append(cancel(c, **kw))
    )
    monkeypatch.setattr(pages, "PAGE_BYTES", 1000)
    count = 5 * CHUNK_ROWS
    job_id, day = settled(engine, *map(outcome, range(count)))

    rows = item_rows(engine, job_id, day=day, total_count=count, check=always)

    assert [row.item_index for row in rows] == list(range(count))
    assert len(cuts) == 1


def test_lease_is_checked_before_every_object(engine: sa.Engine) -> None:
    stored = [outcome(n, body=b"", body_key="bodies/large") for n in range(3)]
    job_id, day = settled(engine, *stored, outcome(3))
    looks: list[int] = []

    list(item_rows(engine, job_id, day=day, total_count=4, check=lambda: looks.append(1)))

    assert len(looks) == 1 + 3


FINALISE_TWO = """
import resource, sys
from core.clock import SystemClock
from pathlib import Path
from storage.objects.local_object_store import LocalObjectStore
from tests.integration.results.outcomes import new_engine
from tests.integration.results.test_finalisation import always, acquire_lease
from results.finaliser.finalisation import finalise
engine, store = new_engine(sys.argv[1]), LocalObjectStore(Path(sys.argv[2]), clock=SystemClock())
for _ in range(2):  # the small one first: it loads the code
    finalise(engine, store, acquire_lease(engine), check=always)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.timeout(300)
def test_100_000_rows_are_read_in_constant_memory(
    engine: sa.Engine, database_url: str, tmp_path: Path
) -> None:
    """100 MB of bodies; memory is measured in a separate process."""
    settle(engine, outcome(0))
    large = add_running_job(engine, 100_000)
    fill = """
        INSERT INTO items SELECT :job, :day, n, 1, 200, 1, 0, 0, 0, 0, now(), 'request-' || n,
            NULL, NULL, convert_to('{"text":"' || repeat('x', 1000) || '"}', 'UTF8'), NULL
        FROM generate_series(0, 99999) AS n
    """
    day = job_day(job(engine, large)["created_at"])
    ended = {"state": "finalizing", "settled_at": sa.func.now()}
    execute(
        engine,
        sa.text(fill).bindparams(job=large, day=day),
        sa.update(jobs).where(jobs.c.id == large).values(ended),
    )

    ran = subprocess.run(
        [sys.executable, "-c", FINALISE_TWO, database_url, str(tmp_path / "objects")],
        capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip

    small_kib, large_kib = map(int, ran.stdout.split())
    assert job(engine, large)["state"] == "completed"
    assert large_kib - small_kib < 32 * 1024
