"""A10: rows a second of the results writer's transactions over a plain COPY of as many rows.

What: 500,000 results of 1 KB, of which 20 % are redelivered: 400,000 items, and 100,000 duplicates.
Ours is `results.writer.item_writer.ItemWriter`: locks, admission, duplicates, rows, counters, bill,
settlement. The peer is COPY BINARY of 500,000 prepared rows into an equal table (same columns, same
key), in transactions of the same size.

How: interleaved, one client, one server, both tables emptied and a checkpoint before every run. Two
orders of redelivery: in `spread`, every fifth record has come just before; in `burst`, a quarter of
all records comes again halfway, as after a crash.

Goal: 0.7 of COPY's rows a second in results judged.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

import psycopg

from benchmarks.data.result_records import (
    GROUP_ITEMS,
    ORDERS,
    Group,
    add_job,
    check_settled,
    group_records,
    plain_rows,
    records,
)
from benchmarks.runs import Pair, Report, Row, Run, Setup
from benchmarks.stacks.services import Service, driver_url, running_postgres
from benchmarks.statistics.cpu import cpu_by_role, cpu_used
from benchmarks.statistics.pairing import paired_row, role_rows, run_pairs
from core.ids import new_uuid
from migrations.runner import upgrade
from results.writer.day_partitions import DayPartitions
from results.writer.item_writer import ItemWriter
from results.writer.statements import COPY_ITEMS, COPY_TYPES
from storage.postgres.engines import create_engine
from storage.postgres.settings import DatabaseSettings

RESULTS, QUICK_RESULTS = 500_000, 20_000
GOAL = "ratio ≥ 0.7"

_COPY_PLAIN = COPY_ITEMS.replace("COPY items", "COPY plain_items", 1)


def measure(setup: Setup) -> Report:
    """Run the benchmark. Raises VoidRunError."""
    results = setup.count(RESULTS, QUICK_RESULTS)
    rows: list[Row] = []
    pairs: list[Pair] = []
    voids: list[str] = []
    new = records(results)
    with running_postgres(setup.work) as postgres:
        sink = Sink(postgres, results)
        for name, order in ORDERS.items():
            setup.note(f"redelivery: {name}")
            found, void = run_pairs(
                partial(sink.write, group_records(order(new))), sink.copy, setup
            )
            rows += _rows(name, found)
            pairs += found
            voids += void
        sink.close()
    return Report(name="result_sink", rows=rows, pairs=pairs, voids=voids)


class Sink:
    """A migrated database with both ways to write into it."""

    def __init__(self, postgres: Service, results: int) -> None:
        """Migrate, and build the rows of the plain COPY."""
        upgrade(postgres.address)
        settings = DatabaseSettings.model_validate({"url": postgres.address})
        self._postgres = postgres
        self._engine = create_engine(settings, application_name="benchmark")
        self._partitions = DayPartitions(self._engine)
        self._connection = psycopg.connect(driver_url(postgres.address), autocommit=True)
        self._connection.execute("CREATE TABLE plain_items (LIKE items INCLUDING ALL)")
        self._rows = plain_rows(results, new_uuid(), day=0)

    def write(self, groups: Sequence[Group]) -> Run:
        """Write every group as the role does. Raises VoidRunError."""
        self._empty()
        total_count = len({item.index for group in groups for item in group})
        job_id = add_job(self._engine, total_count=total_count)
        writer = ItemWriter(self._engine, self._partitions)

        def work() -> None:
            for group in groups:
                writer.write({job_id: group})

        run = self._measured(work, items=sum(map(len, groups)), durable=total_count)
        check_settled(self._engine, job_id, total_count)
        return run

    def copy(self) -> Run:
        """Copy every row."""
        self._empty()

        def work() -> None:
            for first in range(0, len(self._rows), GROUP_ITEMS):
                with (
                    self._connection.transaction(),
                    self._connection.cursor() as cursor,
                    cursor.copy(_COPY_PLAIN) as copy,
                ):
                    copy.set_types(COPY_TYPES)
                    for row in self._rows[first : first + GROUP_ITEMS]:
                        copy.write_row(row)

        return self._measured(work, items=len(self._rows), durable=len(self._rows))

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()
        self._engine.dispose()

    def _empty(self) -> None:
        self._connection.execute("TRUNCATE items, plain_items")
        self._connection.execute("CHECKPOINT")

    def _measured(self, work: Callable[[], None], *, items: int, durable: int) -> Run:
        before, client_s = cpu_by_role(self._postgres.roles), time.process_time()
        started_s = time.perf_counter()
        work()
        seconds = time.perf_counter() - started_s
        used = {"client": time.process_time() - client_s}
        used |= cpu_used(before, cpu_by_role(self._postgres.roles))
        return Run(items=items, seconds=seconds, cpu_s=used, facts={"durable_rows": durable})


def _rows(name: str, pairs: Sequence[Pair]) -> list[Row]:
    return [
        paired_row(f"{name}: judged", "rows/s", pairs, lambda run: run.rate, goal=GOAL),
        paired_row(
            f"{name}: made durable",
            "rows/s",
            pairs,
            lambda run: run.facts["durable_rows"] / run.seconds,
        ),
        paired_row(f"{name}: client and server", "µs CPU/row", pairs, lambda run: run.cpu_us),
        *role_rows([pair.ours for pair in pairs], f"{name}: ours"),
        *role_rows([pair.peer for pair in pairs], f"{name}: COPY"),
    ]
