"""Goal: a process knows how those before it on its host ended, and leaves the same knowledge."""

import asyncio
import errno
import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import replace

from core.errors import EngineDeadError
from gpu_consumers import metrics
from gpu_consumers.quarantine import process_log
from gpu_consumers.quarantine.host_history import UNEXPLAINED_ENDS_MAX, successors
from gpu_consumers.quarantine.host_identity import host_id
from gpu_consumers.quarantine.process_log import ProcessLog, is_host_fault
from gpu_consumers.settings import HostSettings
from tests.support.clock import ManualClock
from tests.support.until import until_true
from topics.errors import DeliveryError, KafkaUnavailableError
from topics.records.attempts import AttemptUnit, BatchAttempt, ProcessEnd, ReplicaProcess
from topics.records.codec import decode_value
from topics.settings import KafkaSettings

KAFKA = KafkaSettings(bootstrap_servers="none:9092")
GONE_PID = 2**22 + 1  # above the largest process id of Linux
SHORT = ProcessEnd(2.0, has_served=False, has_proven=False, ran_alone=False)


class Topic:
    """The topic `attempts` in memory."""

    def __init__(self) -> None:
        self.attempts: dict[UUID, BatchAttempt] = {}

    def read(self, kafka: KafkaSettings, *, client_id: str) -> dict[UUID, BatchAttempt]:
        return dict(self.attempts)

    def write(self, kafka: KafkaSettings, values: Mapping[UUID, bytes | None]) -> None:
        for key, value in values.items():
            self.attempts.pop(key, None)
            if value is not None:
                self.attempts[key] = decode_value(BatchAttempt, value)

    def add_process(self, number: int, process: ReplicaProcess, host: str = "h") -> UUID:
        process_id = UUID(int=number)
        self.attempts[process_id] = BatchAttempt(
            process_id, 1, [], False, host_id=host, process=process
        )
        return process_id


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    topic = Topic()
    monkeypatch.setattr(process_log, "read_attempts", topic.read)
    monkeypatch.setattr(process_log, "_send", topic.write)
    return topic


def process(**fields: object) -> ReplicaProcess:
    known = ReplicaProcess(socket.gethostname(), GONE_PID, "p", started_s=90.0, ready_s=95.0)
    return replace(known, **fields)


async def started(topic: Topic) -> ProcessLog:
    log = ProcessLog(kafka=KAFKA, pool="p", host_id="h", clock=ManualClock(100.0))
    await log.read_predecessors()
    return log


async def serve(
    log: ProcessLog, until: Callable[[], bool], failure: Exception | None = None
) -> None:
    """Serve until a condition holds, then end with the failure."""
    async with log.serving(8):
        await until_true(until)
        if failure is not None:
            raise failure


async def ends(topic: Topic) -> list[ProcessEnd]:
    """Return the ends that a new process finds, as it records them when it is ready."""
    log = await started(topic)
    with pytest.raises(EngineDeadError):
        await serve(log, lambda: log.host.process_id in topic.attempts, EngineDeadError())
    recorded = topic.attempts[log.host.process_id].process
    assert recorded is not None
    assert (recorded.is_stopped, recorded.ready_s) == (False, 100.0)
    return recorded.ends


async def test_a_predecessor_that_does_not_run_any_more_has_crashed(topic: Topic) -> None:
    process_id = topic.add_process(1, process(ends=[SHORT], has_served=True))
    running = BatchAttempt(
        UUID(int=9), 1, [AttemptUnit(3, 1, 2)], is_running=True, process_id=process_id
    )
    topic.attempts[running.batch_id] = running

    last = ProcessEnd(5.0, has_served=True, has_proven=False, ran_alone=True)
    assert await ends(topic) == [SHORT, last]
    assert process_id not in topic.attempts
    (successor,) = [a for a in topic.attempts.values() if a.process is not None]
    assert successors(topic.attempts.values(), process_id) == {successor.batch_id: False}
    assert await ends(topic)  # the process after that one
    (newest,) = [a for a in topic.attempts.values() if a.process is not None]
    assert newest.process is not None
    assert newest.process.predecessors == [process_id, successor.batch_id]


@pytest.mark.parametrize(
    ("fields", "host"),
    [
        ({"pid": os.getppid()}, "h"),
        ({"pool": "another"}, "h"),
        ({"node": "another"}, "h"),
        ({}, "another"),
    ],
)
async def test_a_process_that_runs_or_belongs_to_others_says_nothing(
    topic: Topic, fields: dict[str, object], host: str
) -> None:
    process_id = topic.add_process(1, process(**fields), host)

    assert await ends(topic) == []
    assert process_id in topic.attempts


async def test_a_process_that_stopped_keeps_the_ends_before_it(topic: Topic) -> None:
    topic.add_process(1, process(ends=[SHORT], is_stopped=True))
    assert await ends(topic) == [SHORT]


async def test_a_log_that_cannot_be_read_says_nothing(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(kafka: KafkaSettings, *, client_id: str) -> dict[UUID, BatchAttempt]:
        raise KafkaUnavailableError

    monkeypatch.setattr(process_log, "read_attempts", fail)
    assert await ends(topic) == []


@pytest.mark.parametrize(
    "failure", [None, DeliveryError(), KafkaUnavailableError(), OSError(errno.ENOSPC, "full")]
)
async def test_an_end_without_fault_of_an_item_counts_for_none(
    topic: Topic, failure: Exception | None
) -> None:
    log = await started(topic)
    attempt = BatchAttempt(UUID(int=9), 1, [AttemptUnit(3, 1, 2)], is_running=True)
    log.host.running[attempt.batch_id] = attempt
    with pytest.raises(type(failure)) if failure is not None else nullcontext():
        await serve(log, lambda: True, failure)

    assert topic.attempts[attempt.batch_id] == replace(attempt, is_running=False)
    recorded = topic.attempts[log.host.process_id].process
    assert recorded is not None
    assert recorded.is_stopped


async def test_service_is_recorded(topic: Topic) -> None:
    log = await started(topic)
    log.host.record_answers(1000)

    def has_served() -> bool:
        found = topic.attempts.get(log.host.process_id)
        return found is not None and found.process is not None and found.process.has_served

    await serve(log, has_served)


async def test_a_failing_host_rests_and_says_so(
    topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    topic.add_process(1, process(ends=[SHORT] * UNEXPLAINED_ENDS_MAX))
    log = await started(topic)
    stop = threading.Event()
    resting = asyncio.create_task(log.rest(stop))
    await until_true(lambda: metrics.HOST_REST_SECONDS._value.get() > 0)
    assert not resting.done()
    stop.set()
    await resting
    assert metrics.HOST_UNEXPLAINED_ENDS._value.get() == UNEXPLAINED_ENDS_MAX + 1
    assert "this host ends its processes whatever they run" in caplog.text


def test_a_failure_of_an_item_or_a_bug_is_no_fault_of_the_host() -> None:
    assert not any(map(is_host_fault, [EngineDeadError(), ValueError(), OSError(errno.EPERM, "")]))


def test_the_host_is_a_setting_or_the_machine(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "machine").write_text("0123456789abcdef0123456789abcdef\n")
    sources = [tmp_path / "missing", tmp_path / "empty", tmp_path / "machine"]
    derived = host_id(HostSettings(), sources)

    assert host_id(HostSettings.from_env({"MILLRACE_HOST_ID": "node-7"}), sources) == "node-7"
    assert derived == host_id(HostSettings(), sources)
    assert "0123456789abcdef" not in derived
    assert len({derived, host_id(HostSettings(), []), host_id(HostSettings())}) > 1
