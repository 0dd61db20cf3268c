"""Writes what busy replicas write: `… .capacity_load SERVERS REPLICAS POOLS SECONDS`.

Each replica of class bulk ends 20 items a second, so it repeats its grants to three batchers every
0.6 s (`grant_changes`: 12 items are less than an eighth of its limit) and its capacity every
second, evenly spread over time, with new grants and in-flight jobs. Each record is a record batch
of its own, as if every replica had its own connection. Reports `@ready`, then `@result` with the
records that were sent.
"""

import json
import sys
import time
import uuid

from confluent_kafka import Producer

from benchmarks.children.line_child import die_with_parent, report_line, wait_for_line
from gpu_consumers.flow_control.capacity_schedule import REPEAT_S as CAPACITY_S
from gpu_consumers.flow_control.grant_changes import BUSY_REPEAT_S as GRANTS_S
from topics.clients.client_factory import new_client
from topics.records.catalogue import CAPACITY, GRANTS, grants_partition
from topics.records.codec import encode, kind_headers
from topics.records.records import Capacity, ReplicaGrants
from topics.settings import KafkaSettings

BATCHERS = [f"batcher-bulk-{number:012x}" for number in range(3)]
JOBS = [uuid.UUID(int=number) for number in range(10)]
ITEMS = 12
"""Items of a replica that end between two of its grants."""

_PAUSE_S = 0.001


class Replicas:
    """The records of all replicas."""

    def __init__(self, servers: str, count: int, pool_count: int) -> None:
        settings = KafkaSettings(bootstrap_servers=servers)
        options = settings.client_options() | {
            "client.id": "replicas",
            "linger.ms": 0,
            "batch.num.messages": 1,
            "acks": 1,
            "compression.type": settings.compression,
        }
        self._producer = new_client(Producer, options)
        self._ids = [f"pool-{n % pool_count}-host-{n:04}-{n:08x}" for n in range(count)]
        self._pools = [f"pool-{n % pool_count}" for n in range(count)]
        self._finished = [0] * count
        self._grant_headers = kind_headers(ReplicaGrants)
        self._capacity_headers = kind_headers(Capacity)

    def send_grants(self, number: int) -> None:
        """Send the grants of one replica; some items have ended since the last ones."""
        self._finished[number] += ITEMS
        record = ReplicaGrants(
            replica_id=self._ids[number],
            epoch=7_000_000_000_000_000,
            pool=self._pools[number],
            job_class="bulk",
            partitions=[number % 1024],
            granted=self._granted(number),
            concurrency=64,
        )
        self._send(
            GRANTS.name,
            encode(record),
            f"{record.replica_id}:bulk",
            grants_partition("bulk"),
            self._grant_headers,
        )

    def send_capacity(self, number: int) -> None:
        """Send the public state of one replica."""
        record = Capacity(
            replica_id=self._ids[number],
            epoch=7_000_000_000_000_000,
            pool=self._pools[number],
            job_class="bulk" if number % 2 else "interactive",
            partitions=[number % 1024],
            granted=self._granted(number),
            items_per_s=20.0 + number % 7 / 3,
            concurrency=64,
            in_flight_jobs=JOBS,
        )
        self._send(
            CAPACITY.name,
            encode(record),
            f"{record.pool}:{record.replica_id}:{record.job_class}",
            0,
            self._capacity_headers,
        )

    def poll(self) -> None:
        """Let the client report deliveries."""
        self._producer.poll(0)

    def _granted(self, number: int) -> dict[str, int]:
        return dict.fromkeys(BATCHERS, self._finished[number] // 3 + 40)

    def _send(
        self, topic: str, value: bytes, key: str, partition: int, headers: list[tuple[str, bytes]]
    ) -> None:
        self._producer.produce(topic, value, key.encode(), partition, headers=headers)


def main(servers: str, count: str, pool_count: str, seconds: str) -> None:
    """Write until the time is over."""
    replica_count = int(count)
    replicas = Replicas(servers, replica_count, int(pool_count))
    report_line("ready")
    wait_for_line()
    began_s, until_s = time.perf_counter(), float(seconds)
    grants = capacities = 0
    while (passed_s := time.perf_counter() - began_s) < until_s:
        while grants < passed_s / GRANTS_S * replica_count:
            replicas.send_grants(grants % replica_count)
            grants += 1
        while capacities < passed_s / CAPACITY_S * replica_count:
            replicas.send_capacity(capacities % replica_count)
            capacities += 1
        replicas.poll()
        time.sleep(_PAUSE_S)
    report_line("result", json.dumps({"grants": grants, "capacity": capacities}))


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
