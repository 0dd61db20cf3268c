"""Goal: every item leaves on a batch, against granted credit only, whatever the process meets."""

from collections import Counter
from collections.abc import Callable
from uuid import UUID

from batcher.agents import group_of
from tests.integration.batcher.surroundings import (
    BatcherProcess,
    Replica,
    Requests,
    job_ref,
    wait_until,
)
from topics.admin import LogAdmin
from topics.catalogue import REQUESTS_BULK
from topics.records import JobRef
from topics.settings import KafkaSettings

StartReplica = Callable[..., Replica]
StartBatcher = Callable[..., BatcherProcess]


def expected(job: JobRef, count: int) -> Counter[tuple[UUID, int]]:
    return Counter({(job.job_id, index): 1 for index in range(count)})


def lag(kafka: KafkaSettings) -> int:
    return sum(LogAdmin(kafka).lag(group_of("bulk"), REQUESTS_BULK).values())


def test_every_item_leaves_once_and_every_offset_is_committed(
    kafka: KafkaSettings,
    requests: Requests,
    start_replica: StartReplica,
    start_batcher: StartBatcher,
) -> None:
    replica = start_replica()
    batcher = start_batcher()
    jobs = [job_ref(number) for number in range(1, 6)]
    for job in jobs:
        requests.send(job, 1000)
    wanted = sum((expected(job, 1000) for job in jobs), Counter())
    wait_until(lambda: len(replica.items()) == 5000, "all items on batches")
    assert replica.items() == wanted
    wait_until(lambda: lag(kafka) == 0, "all offsets committed")
    assert batcher.stop() == 0
    assert replica.items() == wanted
    assert lag(kafka) == 0
    assert not replica.over_granted
    assert replica.partitions == {1, 3}
    assert max(sum(len(p.items) for p in b.parts) for b in replica.batches) <= 100
