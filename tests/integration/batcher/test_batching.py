"""Goal: every item is dispatched once against granted credit, through kills and rebalances."""

from collections import Counter
from functools import partial
from pathlib import Path
from uuid import UUID

import psutil

from tests.integration.batcher.harness import (
    BatcherProcess,
    Bench,
    Replica,
    expected,
    job_ref,
)
from tests.support.until import until


def has_items(replica: Replica, count: int) -> bool:
    return len(replica.items()) >= count


def test_every_item_is_dispatched_once_and_every_offset_committed(bench: Bench) -> None:
    replica = bench.start_replica()
    batcher = bench.start_batcher()
    jobs = [job_ref(number) for number in range(1, 6)]
    for job in jobs:
        bench.requests.send(job, 1000)
    wanted = sum((expected(job, 1000) for job in jobs), Counter[tuple[UUID, int]]())
    until(lambda: len(replica.items()) == 5000)
    assert replica.items() == wanted
    until(lambda: bench.lag() == 0)
    assert batcher.stop() == 0
    assert replica.items() == wanted
    assert bench.lag() == 0
    assert not replica.over_granted
    assert replica.partitions == {1, 3}
    assert max(sum(len(p.items) for p in b.parts) for b in replica.batches) <= 100


def test_replicas_with_and_without_grants_get_batches(bench: Bench) -> None:
    new = bench.start_replica(window=200)
    old = bench.start_replica(window=200, pool="other", has_grants=False)
    batcher = bench.start_batcher()
    jobs = {new: job_ref(1), old: job_ref(2, pool="other")}
    for job in jobs.values():
        bench.requests.send(job, 1000)
    for replica, job in jobs.items():
        until(partial(has_items, replica, 1000))
        assert replica.items() == expected(job, 1000)
        assert not replica.over_granted
    assert batcher.stop() == 0


def test_batcher_without_partitions_stops_on_sigterm(bench: Bench) -> None:
    replica = bench.start_replica()
    batcher = bench.start_batcher(MILLRACE_KAFKA_SESSION_TIMEOUT_S=0.5)  # the broker refuses it
    until(lambda: replica.waiting)
    assert batcher.stop() == 0


def test_killed_batcher_loses_nothing_and_repeats_little(bench: Bench) -> None:
    replica = bench.start_replica(window=400, items_per_s=2000)
    jobs = [job_ref(number) for number in range(1, 6)]
    for job in jobs:
        bench.requests.send(job, 1200)
    session = {"MILLRACE_KAFKA_SESSION_TIMEOUT_S": 2}  # each successor waits for it
    for goal in (1500, 3500):
        batcher = bench.start_batcher(**session)
        until(partial(has_items, replica, goal))
        batcher.kill()
    batcher = bench.start_batcher(**session)
    until(lambda: len(replica.items()) == 6000)
    until(lambda: bench.lag() == 0)
    assert batcher.stop() == 0
    assert set(replica.items()) == {(job.job_id, n) for job in jobs for n in range(1200)}
    # A death repeats what left since the last commit, 0.2 s apart on an idle machine: half a
    # second of throughput, and what one window holds.
    assert sum(replica.items().values()) - 6000 <= 2 * (2000 * 0.5 + 400)
    assert not replica.over_granted


def test_successor_of_a_killed_batcher_does_not_wait_for_its_session(
    bench: Bench, tmp_path: Path
) -> None:
    settings = {
        "MILLRACE_KAFKA_SESSION_TIMEOUT_S": 120,  # longer than anybody waits here
        "MILLRACE_KAFKA_MEMBERS_FOLDER": bench.folder / "members",
    }
    replica = bench.start_replica(window=200)
    killed = bench.start_batcher(**settings)
    killed.ready()
    killed.kill()
    successor = bench.start_batcher(**settings)
    successor.ready()
    bench.requests.send(job_ref(1), 100)
    until(lambda: len(replica.items()) == 100)
    assert successor.stop() == 0


def test_rebalances_lose_nothing(bench: Bench) -> None:
    replica = bench.start_replica(window=200)
    first = bench.start_batcher()
    first.ready()
    jobs = [job_ref(number) for number in range(1, 9)]
    for job in jobs:
        bench.requests.send(job, 1000)
    second = bench.start_batcher()
    second.ready()
    for job in jobs:
        bench.requests.send(job, 1000, first=1000)
    until(lambda: len(replica.items()) >= 9000)
    assert first.stop() == 0
    until(lambda: len(replica.items()) == 16_000)
    until(lambda: bench.lag() == 0)
    assert second.stop() == 0
    assert set(replica.items()) == {(job.job_id, n) for job in jobs for n in range(2000)}


def test_a_newcomer_runs_although_others_have_more_on_the_log_than_the_buffer_holds(
    bench: Bench,
) -> None:
    replica = bench.start_replica(window=0)
    batcher = bench.start_batcher(held_items_max=2000, deferred_records_max=8192)
    batcher.ready()
    whales = [job_ref(number) for number in range(1, 5)]
    for job in whales:
        bench.requests.send(job, 4000)
    newcomer = job_ref(9)
    bench.requests.send(newcomer, 10)
    until(lambda: replica.waiting)
    until(lambda: max(replica.waiting.values()) >= 1000)
    replica.window = 400
    until(lambda: len(replica.items()) == 16_010)
    until(lambda: bench.lag() == 0)
    assert batcher.stop() == 0
    assert set(replica.items().values()) == {1}
    order = [chunk.job.job_id for batch in replica.batches for chunk in batch.parts]
    sizes = [len(chunk.items) for batch in replica.batches for chunk in batch.parts]
    assert sum(sizes[: order.index(newcomer.job_id)]) <= 2000


def test_without_capacity_nothing_is_dispatched_and_memory_is_bounded(bench: Bench) -> None:
    replica = bench.start_replica(window=0)
    batcher = bench.start_batcher(held_items_max=2000, stall_limit_s=5)
    batcher.ready()
    until(lambda: replica.waiting)
    before = memory_bytes(batcher)
    for number in range(1, 9):
        bench.requests.send(job_ref(number), 5000, size=2000)  # 80 MB in all
    until(lambda: max(replica.waiting.values()) >= 1000)
    # Long enough for a watchdog that mistakes an empty pool for a standstill.
    until(lambda: replica.demand_age_s > 8)
    assert max(replica.waiting.values()) <= 2000 + 100
    assert replica.items() == Counter()
    assert memory_bytes(batcher) - before < 250_000_000
    replica.window = 2000
    until(lambda: len(replica.items()) == 40_000)
    until(lambda: bench.lag() == 0)
    assert batcher.stop() == 0


def memory_bytes(batcher: BatcherProcess) -> int:
    """Return the resident memory of the process."""
    return int(psutil.Process(batcher.process.pid).memory_info().rss)
