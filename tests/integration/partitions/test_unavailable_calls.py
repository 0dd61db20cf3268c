"""Goal: an unavailable partition of `replies` or `requests.interactive` holds up its own calls.

Each test freezes the broker of one partition for longer than the delivery timeout.
"""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.api.online_site import Online, opened
from tests.integration.api.sites import new_site
from tests.integration.partitions.conftest import DEAD
from tests.integration.partitions.frozen_topics import create_topics, patient, until
from tests.integration.partitions.log_records import wait_unavailable
from tests.support.two_brokers import TwoBrokers
from topics.records.catalogue import REPLIES, REQUESTS_INTERACTIVE, SHARED_TOPICS
from topics.records.partitioner import shuffle_shard
from topics.settings import KafkaSettings

pytestmark = pytest.mark.timeout(240)

CALLS = 12


def code_of(response: httpx.Response) -> str:
    code: str = response.json()["error"]["code"]
    return code


def readiness(online: Online) -> tuple[int, list[str]]:
    """Return the status of `/readyz` and the partitions that its body names."""
    response = online.client.get("/readyz")
    body: dict[str, Any] = response.json()
    return response.status_code, body.get("unavailable_partitions", [])


@contextmanager
def tenant_of_partition(online: Online) -> Iterator[Online]:
    """Give the test a tenant half of whose calls go to the partition that it freezes."""
    while True:
        site = new_site(online.site.running)
        shard = shuffle_shard("small", site.tenant_id, REQUESTS_INTERACTIVE.partition_count)
        if DEAD in shard:
            break
    online.pool.begin_test(site.tenant_id, site.other_tenant_id)
    with site.client() as client:
        yield Online(site, online.pool, client)


def test_calls_use_the_other_partition_of_their_shard(
    brokers: TwoBrokers, kafka: KafkaSettings, database_url: str, tmp_path: Path
) -> None:
    create_topics(brokers, kafka, REQUESTS_INTERACTIVE)
    with (
        opened(patient(kafka), database_url, tmp_path) as first,
        tenant_of_partition(first) as online,
        ThreadPoolExecutor(CALLS) as threads,
    ):
        online.call().raise_for_status()
        brokers.freeze()
        sent = [threads.submit(online.call) for _ in range(CALLS)]
        early = [each.result() for each in sent]
        refused = [response for response in early if response.status_code != 200]
        assert {(r.status_code, code_of(r)) for r in refused} <= {(503, "log_unavailable")}
        wait_unavailable(REQUESTS_INTERACTIVE, DEAD, 2 * kafka.delivery_timeout_s)
        assert [online.call().status_code for _ in range(CALLS)] == [200] * CALLS
        name = f"{REQUESTS_INTERACTIVE.name}/{DEAD}"
        until(lambda: readiness(online) == (200, [name]))

        brokers.thaw()
        until(lambda: readiness(online) == (200, []))
        until(lambda: len(online.pool.chunks) == 1 + 2 * CALLS)
        runs = Counter(chunk.job.job_id for chunk in online.pool.chunks)
        assert set(runs.values()) == {1}
        assert online.call().status_code == 200


def test_calls_wait_for_replies_that_cannot_be_read(
    brokers: TwoBrokers, kafka: KafkaSettings, database_url: str, tmp_path: Path
) -> None:
    brokers.create_topics(kafka, SHARED_TOPICS, {REPLIES.name: {*range(REPLIES.partition_count)}})
    with (
        opened(patient(kafka), database_url, tmp_path) as online,
        ThreadPoolExecutor(1) as threads,
    ):
        online.call().raise_for_status()
        brokers.freeze()
        waiting = threads.submit(online.call)
        late = online.call({"timeout_ms": 3000})
        assert (late.status_code, code_of(late)) == (504, "deadline_exceeded")
        until(lambda: readiness(online)[1])
        status, (name,) = readiness(online)
        assert status == 200
        assert name.startswith(f"{REPLIES.name}/")
        assert online.client.get("/v1/batches").status_code == 200
        assert not waiting.done(), waiting.result().text

        brokers.thaw()
        assert waiting.result(90).status_code == 200
        until(lambda: readiness(online) == (200, []))
        assert online.call().status_code == 200
        assert len(online.pool.chunks) == 4  # each was sent once
