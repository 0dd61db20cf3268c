"""Goal: an order that is in the log and was not carried out is sent again by the successor."""

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from autoscaler.actuators.actuator import PoolOrder, StaleEpochError
from autoscaler.actuators.socket_messages import PoolAnswer
from autoscaler.signals.topic_inputs import decoded
from chaos.installations.scaling_relay import ScalingRelay
from tests.support.autoscaler_world import L4, POOL, bulk_of
from tests.support.scaling_sockets import carried_out, scaling_socket
from tests.support.until import until, until_found
from topics.clients.producer import RecordProducer
from topics.records.catalogue import BACKLOG, SCALING
from topics.records.codec import encode, kind_headers
from topics.records.scaling import Backlog, PoolScaling
from topics.settings import KafkaSettings
from topics.tail_readers.topic_tail_reader import TopicTailReader

NEEDED = 2


class FencedPool:
    """A platform that carries orders out and keeps the highest epoch."""

    def __init__(self) -> None:
        self.order = PoolOrder(pool=POOL, epoch=0, sequence=0, kinds=())

    def apply(self, order: PoolOrder) -> PoolAnswer:
        if order.epoch < self.order.epoch:
            raise StaleEpochError("The pool follows a newer epoch.")
        self.order = order
        return self.observe(order.pool)

    def observe(self, _pool: str) -> PoolAnswer:
        return PoolAnswer(kinds=self.order.kinds, epoch=self.order.epoch)


@pytest.fixture
def work(producer: RecordProducer) -> Iterator[None]:
    """A bulk job that needs `NEEDED` replicas, published each second; no replica exists."""
    ended = threading.Event()

    def publish() -> None:
        deadline_s = time.time() + 5_000
        while not ended.is_set():
            record = Backlog(
                intake_id="i",
                pool=POOL,
                at_s=time.time(),
                epoch=1,
                buckets=[bulk_of(7_200_000.0, deadline_s)],
            )
            headers = kind_headers(Backlog)
            producer.send(BACKLOG.name, encode(record), partition=0, key=b"i", headers=headers)
            ended.wait(1)

    thread = threading.Thread(target=publish)
    thread.start()
    yield
    ended.set()
    thread.join()


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[ScalingRelay]:
    """The socket of a platform, behind a relay that can keep orders from it."""
    path = tmp_path / "scaling.sock"
    with ExitStack() as stack:
        served = stack.enter_context(scaling_socket(path, FencedPool()))
        stack.enter_context(carried_out(served.answer_waiting))
        yield stack.enter_context(ScalingRelay(path, random.Random(1)))


def started(kafka: KafkaSettings, folder: Path, name: str) -> "subprocess.Popen[bytes]":
    policies = folder / "scaling.toml"
    policies.write_text(L4)
    env = {
        **os.environ,
        "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "MILLRACE_KAFKA_TOPIC_PREFIX": kafka.topic_prefix,
        "MILLRACE_AUTOSCALER_POLICY_FILE": str(policies),
        "MILLRACE_AUTOSCALER_SOCKET": str(folder / "scaling.sock"),
    }
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen([sys.executable, "-m", "autoscaler"], env=env, stderr=log)


def first_state(kafka: KafkaSettings) -> PoolScaling | None:
    """Return the first state of the pool on the log that has replicas."""
    reader = TopicTailReader(kafka, SCALING, client_id="test-scaling")
    try:
        for received in reader.iter_to_end(10):
            for one in decoded(received, SCALING.records):
                if isinstance(one, PoolScaling) and one.kinds:
                    return one
    finally:
        reader.close()
    return None


@pytest.mark.usefixtures("work")
def test_a_successor_sends_the_order_that_its_killed_predecessor_only_wrote(
    kafka: KafkaSettings, relay: ScalingRelay, tmp_path: Path
) -> None:
    relay.fault = "hang"
    with ExitStack() as stack:
        owner = started(kafka, tmp_path, "owner")
        stack.callback(owner.wait)
        stack.callback(owner.kill)
        held = until_found(relay.held)
        owner.kill()  # it waits for the answer of the platform
        owner.wait()
        assert (held.epoch, held.replicas) == (1, NEEDED)
        assert relay.observe(POOL).kinds == ()
        written = first_state(kafka)
        assert written is not None
        assert (written.epoch, written.sequence) == (held.epoch, held.sequence)
        assert sum(kind.replicas for kind in written.kinds) == NEEDED

        relay.fault = ""
        successor = started(kafka, tmp_path, "successor")
        stack.callback(successor.wait)
        stack.callback(successor.kill)
        until(relay.accepted)
        successor.terminate()
        assert successor.wait(30) == 0

    sent = relay.accepted()[0]
    assert sent.epoch == 2
    assert sent.kinds == held.kinds
    assert {one.epoch for one in relay.accepted()} == {2}
