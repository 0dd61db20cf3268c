"""Goal: what a fault or its cure comes to is known, and one that fails keeps none from healing."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaException

from chaos.clients.history import Recorder
from chaos.errors import DrillError
from chaos.faults import injector, processes, redelivery, services
from chaos.faults.healing import Heal, already_healed, no_target, require_target
from chaos.faults.injector import FaultInjector
from chaos.faults.plan import Fault
from chaos.installations.installation import Installation
from topics.errors import DeliveryError

NOWHERE = cast("Installation", None)


def fault(kind: str, at_s: float, lasts_s: float) -> Fault:
    return Fault(at_s=at_s, kind=kind, target="t", lasts_s=lasts_s, resources=frozenset({"t"}))


def conduct(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *faults: Callable[[], Heal]
) -> tuple[FaultInjector, list[tuple[str, str]]]:
    """Apply faults at once, and heal all of them at the same time."""
    kinds = {str(number): lambda _, __, apply=apply: apply() for number, apply in enumerate(faults)}
    monkeypatch.setattr(injector, "FAULTS", kinds)
    plan = [fault(kind, 0.0, 0.01) for kind in kinds]
    with closing(Recorder(tmp_path / "h.jsonl")) as recorder:
        conducting = FaultInjector(NOWHERE, plan, recorder)
        conducting.start()
        conducting.join()
        told = [
            (step.op, str(step.phase)) for step in recorder.operations() if step.phase != "invoke"
        ]
    return conducting, told


def test_a_cure_that_fails_is_told_and_the_next_is_applied(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    healed: list[int] = []

    def fail() -> None:
        raise RuntimeError("the proxy is gone")

    found, told = conduct(monkeypatch, tmp_path, lambda: fail, lambda: lambda: healed.append(1))
    assert healed == [1]
    assert [reason.split(":")[0] for reason in found.unhealed] == ["0 t"]
    assert told == [("fault", "ok"), ("fault", "ok"), ("heal", "fail"), ("heal", "ok")]
    assert found.healed_s <= time.monotonic()


def test_a_fault_that_hit_nobody_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse() -> Heal:
        raise DrillError("no")

    found, told = conduct(monkeypatch, tmp_path, lambda: no_target, refuse, lambda: already_healed)
    assert found.failures == ["0 t: no target", "1 t: DrillError"]
    assert told == [("fault", "fail"), ("fault", "fail"), ("fault", "ok"), ("heal", "ok")]


def test_a_fault_lasts_as_planned_behind_one_that_took_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    at_s: list[float] = []

    def note() -> None:
        at_s.append(time.monotonic())

    def begin() -> Heal:
        note()
        return note

    def dawdle() -> Heal:
        time.sleep(0.3)
        return already_healed

    kinds = {"slow": lambda *_: dawdle(), "pause": lambda *_: begin()}
    monkeypatch.setattr(injector, "FAULTS", kinds)
    with closing(Recorder(tmp_path / "h.jsonl")) as recorder:
        plan = [fault("slow", 0.0, 0.0), fault("pause", 0.05, 0.1)]
        conducting = FaultInjector(NOWHERE, plan, recorder)
        conducting.start()
        conducting.join()
    began_s, ended_s = at_s
    assert ended_s - began_s >= 0.1
    assert conducting.hits == {"slow": 1, "pause": 1}


def test_a_signal_says_whether_it_met_a_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as alive:
        assert processes.send_signal(alive.pid, signal.SIGKILL)
    assert not processes.send_signal(alive.pid, signal.SIGKILL)


def test_a_kill_of_what_is_dead_is_missed() -> None:
    class Dead:
        def roles(self) -> dict[str, int]:
            return {}

    class Running:
        hosts: dict[str, Any] = {"a": Dead()}  # noqa: RUF012

    installation = cast("Installation", Running())
    assert processes.kill(installation, "a/api") is no_target
    assert processes.pause(installation, "a/api") is no_target


class OneService:
    """An installation whose only service is a process of the test."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process, self.held = process, False

    def service_pid(self, _name: str) -> int | None:
        return self.process.pid if self.process.poll() is None else None

    def keep_down(self, _name: str) -> None:
        self.held = True

    def allow_start(self, _name: str) -> None:
        self.held = False


def test_a_service_is_gone_when_it_was_killed_and_a_dead_one_is_missed() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as alive:
        one = OneService(alive)
        installation = cast("Installation", one)
        heal = services.kill(installation, "kafka-1")
        assert (one.service_pid("kafka-1"), one.held) == (None, True)
        heal()
        assert not one.held
        assert services.kill(installation, "kafka-1") is no_target
        assert not one.held


def test_a_service_that_outlives_its_kill_was_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "EXIT_S_MAX", 0.05)
    monkeypatch.setattr(services, "send_signal", lambda *_: True)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as alive:
        one = OneService(alive)
        with pytest.raises(DrillError):
            services.kill(cast("Installation", one), "kafka-1")
        assert not one.held
        alive.kill()


def test_a_drill_of_one_fault_that_met_nobody_was_not_tried() -> None:
    assert require_target(already_healed, "a/api") is already_healed
    with pytest.raises(DrillError, match="a/api"):
        require_target(no_target, "a/api")


def test_records_that_are_not_delivered_do_not_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tail:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def read_to_end(self, _timeout_s: float) -> list[SimpleNamespace]:
            return [SimpleNamespace(value=b"", partition=0, key=None, headers=None)]

        def close(self) -> None:
            pass

    class Producer(Tail):
        def send(self, *_: object, **__: object) -> None:
            pass

        def flush(self, _timeout_s: float) -> None:
            raise DeliveryError("records were not acknowledged in time")

        def close(self, _timeout_s: float = 10.0) -> None:
            pass

    monkeypatch.setattr(redelivery, "TopicTail", Tail)
    monkeypatch.setattr(redelivery, "LogProducer", Producer)
    installation = cast("Installation", SimpleNamespace(kafka=None))
    with pytest.raises(DeliveryError):
        redelivery.republish_records(installation, "results")


def test_records_are_lost_once_a_broker_serves_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    class Admin:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def delete_records(self, ends: object) -> dict[int, SimpleNamespace]:
            asked.append(ends)
            if len(asked) < 3:
                raise KafkaException
            return {0: SimpleNamespace(result=lambda _: SimpleNamespace(low_watermark=7))}

    monkeypatch.setattr(redelivery, "AdminClient", Admin)
    monkeypatch.setattr(redelivery, "SESSION_S", 0.1)
    kafka = SimpleNamespace(client_options=dict)
    installation = cast("Installation", SimpleNamespace(kafka=kafka))
    assert redelivery.delete_records(installation, "batches") is already_healed
    assert len(asked) == 3

    asked.clear()
    monkeypatch.setattr(redelivery, "_SERVED_S_MAX", -1.0)
    with pytest.raises(KafkaException):
        redelivery.delete_records(installation, "batches")
