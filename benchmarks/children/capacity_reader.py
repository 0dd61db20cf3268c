"""Reads what replicas publish, as a role does: `… .capacity_reader SERVERS STYLE SECONDS`.

STYLE is `api`, `intake` or `batcher`. Reports `@ready` at the topic's end, and after a line from
the benchmark and a second more, `@result` with the CPU of the process, the records that were read
and the seconds.
"""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from api.online.admit.admission import PoolStates
from batcher.outbound.capacity_reader import capacity_reader, grant_reader
from batcher.policy.credits import CreditLedger
from benchmarks.children.capacity_load import BATCHERS
from benchmarks.children.line_child import die_with_parent, report_line, wait_for_line
from core.clock import SystemClock
from core.runtime.role_lifecycle import report_ready
from jobs.expansion.pool_capacity import POLL_INTERVAL_S, PoolCapacities
from topics.records.catalogue import CAPACITY
from topics.records.received_record import ReceivedRecord
from topics.records.records import Capacity, ReplicaGrants
from topics.settings import KafkaSettings
from topics.tail_readers.tail_reader_thread import TailReaderThread
from topics.tail_readers.topic_tail_reader import TopicTailReader

START_S_MAX = 30.0
SETTLE_S = 1.0
ROUND_S = 0.2
"""Interval at which the state is used, as in rounds of intake."""


class Counts:
    """Counts records and polls; one thread writes."""

    def __init__(self) -> None:
        self.records = self.polls = 0

    def add(self, count: int) -> None:
        """Count the records of a poll."""
        self.records += count
        self.polls += 1


def capacity_tail(kafka: KafkaSettings, client_id: str) -> TopicTailReader:
    """Return a reader of capacity as these roles configure it, at the topic's end."""
    tail = TopicTailReader(
        kafka,
        CAPACITY,
        client_id=client_id,
        reset_to_earliest=False,
        poll_interval_s=POLL_INTERVAL_S,
    )
    tail.seek_to_end(START_S_MAX)
    return tail


def read_as_api(kafka: KafkaSettings, counts: Counts) -> Callable[[], object]:
    """Follow all pools as `OnlineRuntime` does; return what is called in each round."""
    clock = SystemClock()
    pools = PoolStates(since_s=clock.monotonic_s())

    def read(records: list[ReceivedRecord]) -> None:
        counts.add(len(records))
        pools.apply_records(records, now_s=clock.monotonic_s())

    tail = capacity_tail(kafka, "api")
    TailReaderThread(tail, read, name="capacity-tail").start()
    return partial(pools.find, "pool-1")


def read_as_intake(kafka: KafkaSettings, counts: Counts) -> Callable[[], object]:
    """Follow all pools as the intake role does; return what is called in each round."""
    capacities = PoolCapacities(SystemClock())
    tail = capacity_tail(kafka, "intake")

    def read() -> None:
        while True:
            records = tail.poll(ROUND_S)
            counts.add(len(records))
            capacities.update(records)

    threading.Thread(target=read, daemon=True).start()
    return lambda: (
        capacities.pools(),
        capacities.batcher_count(),
        capacities.joined_s(),
        capacities.in_flight_jobs(),
    )


async def read_as_batcher(
    kafka: KafkaSettings, counts: Counts, measure: Callable[[], None]
) -> None:
    """Keep the credit of all replicas as the batcher does, while `measure` runs in a thread."""
    clock, loop = SystemClock(), asyncio.get_running_loop()
    ledger = CreditLedger(BATCHERS[0], "bulk", silence_s_max=3.0)

    def record_capacity(capacities: list[Capacity]) -> None:
        counts.add(len(capacities))
        now_s = clock.monotonic_s()
        for capacity in capacities:
            ledger.record_capacity(capacity, now_s=now_s)

    def record_grants(newest: list[ReplicaGrants]) -> None:
        counts.add(len(newest))
        now_s = clock.monotonic_s()
        for grants in newest:
            ledger.record_grants(grants, now_s=now_s)

    def call(record: Callable[[list[Any]], None], records: list[Any]) -> None:
        loop.call_soon_threadsafe(record, records)

    capacities = capacity_reader(
        kafka,
        "bulk",
        client_id="batcher",
        on_capacity=lambda capacities: call(record_capacity, capacities),
        on_failure=_raise,
    )
    grants = grant_reader(
        kafka,
        "bulk",
        client_id="batcher",
        on_grants=lambda grants: call(record_grants, grants),
        on_failure=_raise,
    )
    capacities.start_at_end(START_S_MAX)
    grants.start_at_end(START_S_MAX)
    await asyncio.to_thread(measure)


def measure(counts: Counts, seconds: float, use: Callable[[], object]) -> None:
    """Measure for so many seconds and report."""
    report_ready()  # tunes the garbage collector, as in a role
    report_line("ready")
    wait_for_line()
    time.sleep(SETTLE_S)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    records, polls = counts.records, counts.polls
    while time.perf_counter() - began_s < seconds:
        use()
        time.sleep(ROUND_S)
    result = {
        "cpu_s": time.process_time() - began_cpu_s,
        "seconds": time.perf_counter() - began_s,
        "records": counts.records - records,
        "polls": counts.polls - polls,
    }
    report_line("result", json.dumps(result))


def main(servers: str, style: str, seconds: str) -> None:
    """Read as one role."""
    kafka, counts = KafkaSettings(bootstrap_servers=servers), Counts()
    if style == "batcher":
        report = partial(measure, counts, float(seconds), lambda: None)
        asyncio.run(read_as_batcher(kafka, counts, report))
    else:
        start = {"api": read_as_api, "intake": read_as_intake}[style]
        measure(counts, float(seconds), start(kafka, counts))
    wait_for_line()


def _raise(failure: Exception) -> None:
    raise failure


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
