"""Goal: a replica in standby joins when it is ordered; a spot notice drains a replica in time."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from core.outcomes import Outcome
from tests.integration.gpu_consumers.replica_processes import ReplicaProcess, faults, running
from tests.integration.gpu_consumers.threaded_replica import (
    POOL,
    ThreadedReplica,
    batch,
    items,
    job,
)
from topics.clients.admin import TopicAdmin
from topics.records.access import gpu_group
from topics.records.catalogue import CAPACITY, REQUESTS_BULK, SCALING
from topics.records.codec import decode, encode, kind_headers
from topics.records.records import Capacity, Chunk
from topics.records.scaling import PoolScaling
from topics.settings import KafkaSettings
from topics.tail_readers.topic_tail_reader import TopicTailReader

SLOW = b'{"messages":[{"role":"user","content":"SLOW"}]}'
FAST = b'{"messages":[{"role":"user","content":"fast"}]}'


def decide(replica: ThreadedReplica, *awake: str) -> None:
    """Publish the decision of an autoscaler about the pool."""
    decision = PoolScaling(
        pool=POOL,
        epoch=1,
        sequence=1,
        at_s=time.time(),
        mode="active",
        actuator="embedded",
        target=1,
        kinds=[],
        removals=[],
        awake=list(awake),
        standby=1,
        start_s=90.0,
        wake_s=1.0,
    )
    replica.producer.send(
        SCALING.name,
        encode(decision),
        partition=0,
        key=POOL.encode(),
        headers=kind_headers(PoolScaling),
    )
    replica.producer.flush(40)


def capacities_until(
    tail: TopicTailReader,
    enough: Callable[[list[Capacity]], object],
    meanwhile: Callable[[], None] = lambda: None,
) -> list[Capacity]:
    """Read on until `enough` holds for the records read here; call `meanwhile` between polls."""
    found: list[Capacity] = []
    deadline_s = time.monotonic() + 60
    while not enough(found):
        assert time.monotonic() < deadline_s, found
        meanwhile()
        found += [decode(Capacity, one.value, one.headers) for one in tail.poll(0.2)]
    return found


@pytest.mark.timeout(300)
def test_a_replica_in_standby_sleeps_until_it_is_named_and_then_serves(
    replica: ThreadedReplica, kafka: KafkaSettings, tmp_path: Path
) -> None:
    standby = ReplicaProcess(
        kafka, tmp_path, "standby", MILLRACE_GPU_STANDBY="true", MILLRACE_GPU_TYPE="h100"
    )
    tail = TopicTailReader(kafka, CAPACITY, client_id="standby-test")
    with running(standby):
        asleep = capacities_until(
            tail,
            lambda found: sum(one.lifecycle == "asleep" for one in found) >= 3,
            meanwhile=lambda: decide(replica),
        )
        sleeper = asleep[-1]
        assert (sleeper.available, sleeper.partitions, sleeper.gpu_type) == (False, [], "h100")
        assert not any(one.available for one in asleep)
        assert TopicAdmin(kafka).member_count(gpu_group(POOL, "bulk")) == 0

        decide(replica, sleeper.replica_id)
        joined = capacities_until(
            tail, lambda found: [one for one in found if len(one.partitions) == 8]
        )
        assert (joined[-1].replica_id, joined[-1].lifecycle) == (sleeper.replica_id, "warm")
        replica.send(batch(Chunk(job(), items(0, 1, FAST))))
        (outcome,) = replica.outcomes(1)
        assert outcome.outcome is Outcome.SUCCEEDED
    tail.close()


@pytest.mark.timeout(300)
def test_a_spot_notice_keeps_what_ends_in_time_and_requeues_the_rest(
    replica: ThreadedReplica, kafka: KafkaSettings, tmp_path: Path
) -> None:
    notice = tmp_path / "notice"
    spot = ReplicaProcess(
        kafka,
        tmp_path,
        "spot",
        MILLRACE_GPU_SPOT="true",
        MILLRACE_GPU_NOTICE_FILE=str(notice),
        MILLRACE_GPU_SHUTDOWN_GRACE_S="3600",  # the notice counts
        MILLRACE_ENGINE_SIMULATED_FAULTS=faults(("SLOW", "slow"), slow_s=3600),
    )
    with running(spot):
        replica.await_owner()
        tail = TopicTailReader(kafka, CAPACITY, client_id="notice-test")
        replica.send(batch(Chunk(job(), [*items(0, 3, FAST), *items(3, 1, SLOW)])))
        assert sorted(one.index for one in replica.outcomes(3)) == [0, 1, 2]

        leaves_at = datetime.now(UTC) + timedelta(seconds=8)
        draft = tmp_path / "draft"
        draft.write_text(leaves_at.isoformat())
        draft.rename(notice)
        told = capacities_until(tail, lambda found: found and found[-1].leaves_at_s > 0)[-1]
        assert told.leaves_at_s == pytest.approx(leaves_at.timestamp(), abs=0.001)
        (chunk,) = cast(list[Chunk], replica.read(REQUESTS_BULK, bool))
        assert [(one.index, one.attempt) for one in chunk.items] == [(3, 1)]
        last = capacities_until(tail, lambda found: any(not one.available for one in found))[-1]
        assert (last.lifecycle, last.spot) == ("draining", True)
        tail.close()
        replica.await_lag(0)
        assert [one.outcome for one in replica.outcomes(3)] == [Outcome.SUCCEEDED] * 3
