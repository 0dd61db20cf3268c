"""Goal: when the autoscaler that decides is killed, another decides on, with the same target."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from autoscaler.ownership.scaling_log import ScalingLog
from autoscaler.signals.topic_inputs import decoded
from tests.support.autoscaler_world import L4, POOL, bulk_of, capacity_of
from tests.support.until import until
from topics.clients.producer import RecordProducer
from topics.records.catalogue import BACKLOG, CAPACITY, SCALING
from topics.records.codec import encode, kind_headers
from topics.records.records import Capacity
from topics.records.scaling import Backlog, PoolScaling
from topics.settings import KafkaSettings
from topics.tail_readers.topic_tail_reader import TopicTailReader

TAKEOVER_S = 10.0


class ScalingTopic:
    """The topic as a reader of all its records sees it."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._reader = TopicTailReader(kafka, SCALING, client_id="test-scaling")
        self.log = ScalingLog()
        self.states: list[PoolScaling] = []

    def read(self) -> list[PoolScaling]:
        for record in decoded(self._reader.poll(0.1), SCALING.records):
            self.log.apply(record)
            if isinstance(record, PoolScaling):
                self.states.append(record)
        return self.states

    def newest(self, epoch: int) -> PoolScaling | None:
        return next((one for one in reversed(self.read()) if one.epoch == epoch), None)

    def close(self) -> None:
        self._reader.close()


@pytest.fixture
def topic(kafka: KafkaSettings) -> Iterator[ScalingTopic]:
    topic = ScalingTopic(kafka)
    yield topic
    topic.close()


@pytest.fixture
def work(producer: RecordProducer) -> Iterator[None]:
    """A bulk job for the pool, and two replicas, which are published each second."""
    ended = threading.Event()

    def publish() -> None:
        deadline_s = time.time() + 5_000
        while not ended.is_set():
            now_s = time.time()
            backlog = Backlog(
                intake_id="i",
                pool=POOL,
                at_s=now_s,
                epoch=1,
                buckets=[bulk_of(7_200_000.0, deadline_s)],
            )
            producer.send(
                BACKLOG.name, encode(backlog), partition=0, headers=kind_headers(Backlog), key=b"i"
            )
            for number in range(2):
                one = capacity_of(f"r{number}", lifecycle="warm")
                producer.send(
                    CAPACITY.name,
                    encode(one),
                    partition=0,
                    headers=kind_headers(Capacity),
                    key=one.replica_id.encode(),
                )
            ended.wait(1)

    thread = threading.Thread(target=publish)
    thread.start()
    yield
    ended.set()
    thread.join()


def started(kafka: KafkaSettings, folder: Path, name: str) -> "subprocess.Popen[bytes]":
    policies = folder / "scaling.toml"
    policies.write_text(L4 + 'mode = "observe"\n')
    env = {
        **os.environ,
        "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "MILLRACE_KAFKA_TOPIC_PREFIX": kafka.topic_prefix,
        "MILLRACE_AUTOSCALER_POLICY_FILE": str(policies),
    }
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen([sys.executable, "-m", "autoscaler"], env=env, stderr=log)


@pytest.mark.usefixtures("work")
def test_a_killed_owner_is_followed_within_ten_seconds(
    kafka: KafkaSettings, topic: ScalingTopic, tmp_path: Path
) -> None:
    owner, other = started(kafka, tmp_path, "owner"), None
    try:
        until(lambda: (state := topic.newest(1)) and state.target == 2)
        other = started(kafka, tmp_path, "other")
        until(lambda: b"ready" in (tmp_path / "other.log").read_bytes())
        until(lambda: _has_run_for(topic, 1, seconds=8))
        owner.kill()
        killed_s = time.time()
        until(lambda: topic.newest(2))
    finally:
        owner.kill()
        owner.wait()
        if other is not None:
            other.terminate()
            assert other.wait(30) == 0

    before = topic.newest(1)
    after = next(one for one in topic.states if one.epoch == 2)
    assert before is not None
    assert after.target == before.target == 2
    assert after.at_s - killed_s <= TAKEOVER_S
    started_s = [msgspec.json.decode(one.memory)["history"]["started_s"] for one in (before, after)]
    assert started_s[0] == started_s[1]  # the history goes on


@pytest.mark.usefixtures("work")
def test_an_owner_that_stops_is_followed_and_its_exit_code_is_zero(
    kafka: KafkaSettings, topic: ScalingTopic, tmp_path: Path
) -> None:
    processes = [started(kafka, tmp_path, name) for name in ("a", "b")]
    try:
        until(lambda: topic.read() and topic.log.owner_id)
        first = topic.log.epoch
        until(lambda: all(_is_ready(tmp_path, name) for name in ("a", "b")))
        # The host's name is the same, so the log of the process says which one decides.
        owner = next(n for n, name in enumerate("ab") if _decides(tmp_path, name))
        processes[owner].terminate()
        assert processes[owner].wait(30) == 0
        until(lambda: topic.newest(topic.log.epoch) and topic.log.epoch > first)
    finally:
        for process in processes:
            process.terminate()
        codes = [process.wait(30) for process in processes]
    assert codes == [0, 0]


def _has_run_for(topic: ScalingTopic, epoch: int, *, seconds: float) -> bool:
    """Return whether an epoch has states over so many seconds: the other has joined meanwhile."""
    times = [one.at_s for one in topic.read() if one.epoch == epoch]
    return bool(times) and times[-1] - times[0] >= seconds


def _is_ready(folder: Path, name: str) -> bool:
    return b'"ready"' in (folder / f"{name}.log").read_bytes()


def _decides(folder: Path, name: str) -> bool:
    return b"this process decides" in (folder / f"{name}.log").read_bytes()
