"""Goal: a plan is repeatable, and the outcome of each fault and of its healing is known."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import cast
from unittest.mock import MagicMock

import pytest
from confluent_kafka import KafkaException

from chaos.clients.history import Recorder
from chaos.errors import DrillError
from chaos.faults import injector, processes, redelivery
from chaos.faults.healing import Heal, already_healed, no_target, require_target
from chaos.faults.injector import FAULTS, FaultInjector, fault_kinds
from chaos.faults.plan import Fault, plan_faults
from chaos.installations.installation import Installation
from topics.errors import DeliveryError

NOWHERE = cast("Installation", None)


def fault(kind: str, at_s: float, lasts_s: float) -> Fault:
    return Fault(at_s=at_s, kind=kind, target="t", lasts_s=lasts_s, resources=frozenset({"t"}))


Inject = Callable[..., tuple[FaultInjector, list[tuple[str, str]]]]


@pytest.fixture
def inject(monkeypatch: pytest.MonkeyPatch, recorder: Recorder) -> Inject:
    """Return a function that injects faults at once and heals all of them at the same time."""

    def run(*faults: Callable[[], Heal]) -> tuple[FaultInjector, list[tuple[str, str]]]:
        kinds = {str(i): lambda _, __, apply=apply: apply() for i, apply in enumerate(faults)}
        monkeypatch.setattr(injector, "FAULTS", kinds)
        plan = [fault(kind, 0.0, 0.01) for kind in kinds]
        with FaultInjector(NOWHERE, plan, recorder) as injecting:
            pass
        steps = [step for step in recorder.operations() if step.phase != "invoke"]
        return injecting, [(step.op, str(step.phase)) for step in steps]

    return run


def test_after_a_failed_healing_the_next_is_applied(inject: Inject) -> None:
    healed: list[int] = []

    def fail() -> None:
        raise RuntimeError("the proxy has stopped")

    found, steps = inject(lambda: fail, lambda: lambda: healed.append(1))
    assert healed == [1]
    assert [reason.split(":")[0] for reason in found.unhealed] == ["0 t"]
    assert steps == [("fault", "ok"), ("fault", "ok"), ("heal", "fail"), ("heal", "ok")]
    assert found.healed_s <= time.monotonic()


def test_a_fault_without_a_target_is_a_failure(inject: Inject) -> None:
    def refuse() -> Heal:
        raise DrillError("no")

    found, steps = inject(lambda: no_target, refuse, lambda: already_healed)
    assert found.failures == ["0 t: no target", "1 t: DrillError"]
    assert steps == [("fault", "fail"), ("fault", "fail"), ("fault", "ok"), ("heal", "ok")]


def test_a_fault_lasts_as_planned_after_a_slow_one(
    monkeypatch: pytest.MonkeyPatch, recorder: Recorder
) -> None:
    at_s: list[float] = []

    def note() -> None:
        at_s.append(time.monotonic())

    def pause() -> Heal:
        note()
        return note

    def be_slow() -> Heal:
        time.sleep(0.3)
        return already_healed

    kinds = {"slow": lambda *_: be_slow(), "pause": lambda *_: pause()}
    monkeypatch.setattr(injector, "FAULTS", kinds)
    plan = [fault("slow", 0.0, 0.0), fault("pause", 0.05, 0.1)]
    with FaultInjector(NOWHERE, plan, recorder) as injecting:
        pass
    began_s, ended_s = at_s
    assert ended_s - began_s >= 0.1
    assert injecting.hits == {"slow": 1, "pause": 1}


def test_a_kill_of_a_dead_role_has_no_target_and_fails_a_drill_of_one_fault() -> None:
    dead = SimpleNamespace(roles=dict)
    installation = cast("Installation", SimpleNamespace(hosts={"a": dead}))
    assert processes.kill_role(installation, "a/api") is no_target
    assert processes.pause_role(installation, "a/api") is no_target
    assert require_target(already_healed, "a/api") is already_healed
    with pytest.raises(DrillError, match="a/api"):
        require_target(no_target, "a/api")


class OneService:
    """An installation whose only service is a process of the test."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process, self.is_down = process, False

    def service_pid(self, _name: str) -> int | None:
        return self.process.pid if self.process.poll() is None else None

    def keep_down(self, _name: str) -> None:
        self.is_down = True

    def allow_start(self, _name: str) -> None:
        self.is_down = False


@pytest.fixture
def service() -> Iterator[OneService]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as alive:
        yield OneService(alive)
        alive.kill()


def test_a_killed_service_has_ended_and_a_dead_one_is_no_target(service: OneService) -> None:
    installation = cast("Installation", service)
    heal = processes.kill_service(installation, "kafka-1")
    assert not processes.send_signal(service.process.pid, signal.SIGKILL)  # it was reaped
    assert (service.service_pid("kafka-1"), service.is_down) == (None, True)
    heal()
    assert not service.is_down
    assert processes.kill_service(installation, "kafka-1") is no_target
    assert not service.is_down


def test_a_service_that_survives_its_kill_fails_the_drill(
    service: OneService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "EXIT_S_MAX", 0.05)
    monkeypatch.setattr(processes, "send_signal", lambda *_: True)
    with pytest.raises(DrillError):
        processes.kill_service(cast("Installation", service), "kafka-1")
    assert not service.is_down


def test_a_failed_republication_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    record = SimpleNamespace(value=b"", partition=0, key=None, headers=None)
    tail, producer = MagicMock(), MagicMock()
    tail.return_value.read_to_end.return_value = [record]
    producer.return_value.flush.side_effect = DeliveryError("records were not acknowledged in time")
    monkeypatch.setattr(redelivery, "TopicTailReader", tail)
    monkeypatch.setattr(redelivery, "RecordProducer", producer)
    with pytest.raises(DeliveryError):
        redelivery.republish_records(MagicMock(), "results")
    producer.return_value.send.assert_called_once()


def test_records_are_deleted_once_a_broker_serves_again(monkeypatch: pytest.MonkeyPatch) -> None:
    deleted = {0: SimpleNamespace(result=lambda _: SimpleNamespace(low_watermark=7))}
    admin = MagicMock()
    admin.return_value.delete_records.side_effect = [KafkaException, KafkaException, deleted]
    monkeypatch.setattr(redelivery, "AdminClient", admin)
    monkeypatch.setattr(redelivery, "SESSION_S", 0.1)
    assert redelivery.delete_records(MagicMock(), "batches") is already_healed

    admin.return_value.delete_records.side_effect = KafkaException
    monkeypatch.setattr(redelivery, "_SERVED_S_MAX", -1.0)
    with pytest.raises(KafkaException):
        redelivery.delete_records(MagicMock(), "batches")


KINDS = fault_kinds(("a", "b"), 2.0)


def draw(seed: int) -> list[Fault]:
    return plan_faults(seed, KINDS, duration_s=120, gap_s=(1, 10))


def test_a_seed_repeats_its_plan() -> None:
    assert draw(7) == draw(7)
    assert draw(7) != draw(8)


@pytest.mark.parametrize("seed", range(50))
def test_faults_are_in_order_healed_in_time_and_alone_on_a_resource(seed: int) -> None:
    faults = draw(seed)
    assert faults == sorted(faults, key=lambda fault: fault.at_s)
    ends: dict[str, float] = {}
    for fault in faults:
        assert 0 < fault.at_s <= fault.ends_s < 120
        assert all(ends.get(resource, -1.0) < fault.at_s for resource in fault.resources)
        ends |= dict.fromkeys(fault.resources, fault.ends_s)


def test_faults_occupy_routes_processes_and_services() -> None:
    resources = {kind.name: kind.resources for kind in KINDS}
    route = set(resources["network"]("kafka-a:latency"))
    assert route == set(resources["network"]("kafka-a:blackhole")) == {"kafka-a"}
    assert set(resources["rewind"]("requests")) == {"a/batcher", "b/batcher"}
    assert set(resources["pause"]("b/batcher")) <= set(resources["rewind"]("requests"))
    assert set(resources["postgres-restart"]("postgres")) == set(
        resources["postgres-pause"]("postgres")
    )


@pytest.mark.parametrize("seed", range(200))
def test_a_quick_storm_has_a_fault_of_every_kind(seed: int) -> None:
    faults = plan_faults(seed, KINDS, duration_s=60, gap_s=(1, 4))
    assert {fault.kind for fault in faults} == {kind.name for kind in KINDS}
    assert len(faults) > len(KINDS)


def test_rare_kinds_stay_rare() -> None:
    plans = [draw(seed) for seed in range(50)]
    for kind in KINDS:
        assert (
            max(sum(fault.kind == kind.name for fault in plan) for plan in plans) <= kind.times_max
        )


def test_every_kind_can_be_applied() -> None:
    assert {kind.name for kind in KINDS} == set(FAULTS)
