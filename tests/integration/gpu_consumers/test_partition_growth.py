"""Goal: a pool takes more replicas than its topic had partitions, and the others work on."""

import threading
from functools import partial
from uuid import uuid4

import pytest

from core.clock import SystemClock
from gpu_consumers.batch_consumer import BatchConsumer
from gpu_consumers.inflight.batch_run import DeliveredBatch
from gpu_consumers.partition_growth import PartitionRequests, add_partitions
from tests.support.until import until
from topics.clients.admin import TopicAdmin
from topics.clients.consumer import GroupConsumer
from topics.clients.offset_tracker import Partition
from topics.clients.producer import RecordProducer
from topics.records.access import gpu_group
from topics.records.catalogue import batches_topic
from topics.records.codec import encode, kind_headers
from topics.records.records import Batch
from topics.settings import KafkaSettings

POOL = "grown"
TOPIC = batches_topic(POOL, "bulk")


def has_work(member: "Member") -> bool:
    return bool(member.delivered)


class Member:
    """A replica's consumer of batches in its thread."""

    def __init__(self, kafka: KafkaSettings, number: int, *, asks_before: bool) -> None:
        admin = TopicAdmin(kafka)
        add = partial(add_partitions, admin, POOL, "bulk")
        if asks_before:
            add(joining=1)
        requests = PartitionRequests(partial(add, joining=0), SystemClock())
        self.revoked: list[Partition] = []
        self.delivered: list[int] = []
        self.stop = threading.Event()
        self.producer = RecordProducer(kafka, client_id=f"producer-{number}", linger_ms=1)

        def connect(on_assign, on_revoke):  # type: ignore[no-untyped-def]
            self.group_member = GroupConsumer(
                kafka,
                group=gpu_group(POOL, "bulk"),
                topics=[TOPIC.name],
                client_id=f"member-{number}",
                on_assign=on_assign,
                on_revoke=on_revoke,
                joins=False,
            )
            return self.group_member

        self.consumer = BatchConsumer(
            connect,
            self.producer,
            in_flight_max=10,
            commit_interval_s=0.1,
            clock=SystemClock(),
            should_rejoin=requests.should_rejoin,
        )
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    @property
    def partitions(self) -> list[int]:
        return sorted(number for _, number in self.group_member.assigned)

    def _run(self) -> None:
        self.consumer.run(
            self._deliver,
            lambda _: None,
            self.stop,
            lambda partitions, _: self.revoked.extend(partitions),
        )

    def _deliver(self, delivered: DeliveredBatch) -> None:
        self.delivered.append(delivered.record.partition)
        self.consumer.mark_finished(delivered.record, delivered.generation)

    def close(self) -> None:
        self.stop.set()
        self.thread.join()
        self.producer.close()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("asks_before", [True, False])
def test_a_tenth_replica_of_eight_partitions_gets_work_and_takes_none(
    kafka_bootstrap: str, topic_prefix: str, protocol: str, asks_before: bool
) -> None:
    kafka = KafkaSettings(
        bootstrap_servers=kafka_bootstrap,
        topic_prefix=topic_prefix,
        group_protocol=protocol,  # type: ignore[arg-type]
    )
    admin = TopicAdmin(kafka)
    admin.create([TOPIC])
    sender = RecordProducer(kafka, client_id="sender", linger_ms=1)
    members: list[Member] = []

    def send(partition: int) -> None:
        batch = Batch(uuid4(), "batcher", [])
        sender.send(TOPIC.name, encode(batch), partition=partition, headers=kind_headers(Batch))
        sender.flush()

    try:
        for number in range(TOPIC.partition_count):
            members.append(Member(kafka, number, asks_before=False))
        until(lambda: all(len(member.partitions) == 1 for member in members), timeout_s=60)
        for partition in range(TOPIC.partition_count):
            send(partition)
        until(lambda: all(member.delivered for member in members))
        earlier, before = [*members], {id(m): m.partitions for m in members}
        for member in earlier:
            member.revoked.clear()

        members += [Member(kafka, number, asks_before=asks_before) for number in (8, 9)]
        until(lambda: all(member.partitions for member in members), timeout_s=30)

        assert admin.partition_count(TOPIC) == 16
        until(lambda: sum(len(member.partitions) for member in members) == 16, timeout_s=30)
        assert all(set(before[id(member)]) <= set(member.partitions) for member in earlier)
        # New ones may move: a member can get some before the last one has joined.
        for member in earlier:
            assert not {number for _, number in member.revoked} & set(before[id(member)])
        assert list(admin.drift([TOPIC])) == []
        for member in members[-2:]:
            send(member.partitions[0])
            until(partial(has_work, member))
    finally:
        for member in members:
            member.stop.set()
        for member in members:
            member.close()
        sender.close()
