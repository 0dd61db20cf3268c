"""Goal: ended children are restarted with backoff; a stop is ordered, bounded and complete."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.stack.errors import SettingsRefusedError, StackTimeoutError
from cli.stack.processes.child import LOG_BYTES_MAX, Child
from cli.stack.processes.supervisor import (
    BACKOFF_S_MIN,
    HEALTHY_S,
    LOGS_EVERY_S,
    STOP_S_MAX,
    Supervisor,
    backoff_s,
)
from tests.support.clock import ManualClock


class ScriptedProcess:
    """A process that ends at a scripted time."""

    def __init__(self, bench: "SupervisorBench", child: Child, pid: int) -> None:
        self.bench, self.child, self.pid = bench, child, pid
        self.ends_s: float | None = None

    def has_ended(self) -> bool:
        return self.ends_s is not None and self.bench.clock.now_s >= self.ends_s

    def send(self, number: signal.Signals) -> None:
        self.bench.events.append((self.child.name, number.name))
        takes_s = 0.0 if number is signal.SIGKILL else self.bench.stops_in_s(self.child)
        self.ends_s = self.bench.clock.now_s + takes_s

    def reap(self) -> int:
        self.bench.events.append((self.child.name, "reaped"))
        return self.bench.exit_code


class SupervisorBench:
    """A supervisor with a manual clock and scripted processes."""

    def __init__(
        self,
        stops_in_s: Callable[[Child], float] = lambda child: 0.0,
        log_dir: Path = Path("unused"),
    ) -> None:
        self.clock = ManualClock(100.0)
        self.events: list[tuple[str, str]] = []
        self.stops_in_s = stops_in_s
        self.processes: list[ScriptedProcess] = []
        self.refusals = 0
        self.exit_code = 1
        self.supervisor = Supervisor(
            log_dir, spawn=self.spawn, clock=self.clock, sleep=self.clock.advance
        )

    def spawn(self, child: Child, log_dir: Path) -> ScriptedProcess:
        if self.refusals:
            self.refusals -= 1
            raise OSError(11, "Resource temporarily unavailable")
        process = ScriptedProcess(self, child, 1000 + len(self.processes))
        self.processes.append(process)
        return process

    def kill_newest(self) -> None:
        self.processes[-1].ends_s = self.clock.now_s

    def seconds_until_restart(self) -> float:
        count, began_s = len(self.processes), self.clock.now_s
        while len(self.processes) == count:
            self.supervisor.run_once()
            self.clock.advance(0.01)
            assert self.clock.now_s < began_s + 60
        return self.clock.now_s - began_s


def role(name: str, **options: object) -> Child:
    return Child(name=name, argv=("true",), **options)  # type: ignore[arg-type]


def test_backoff_doubles_within_its_limits() -> None:
    waits = [backoff_s(exit_count, 5.0) for exit_count in range(1, 40)]

    assert waits[:3] == [BACKOFF_S_MIN, 2 * BACKOFF_S_MIN, 4 * BACKOFF_S_MIN]
    assert waits == sorted(waits)
    assert waits[-1] == 5.0


def test_a_failing_child_is_restarted_with_backoff() -> None:
    bench = SupervisorBench()
    bench.supervisor.start([role("api")])

    waits = []
    for _ in range(4):
        bench.kill_newest()
        waits.append(bench.seconds_until_restart())

    assert waits == pytest.approx([0.2, 0.4, 0.8, 1.6], abs=0.05)
    assert bench.supervisor.restarts() == {"api": 4}


def test_a_healthy_child_is_restarted_at_once() -> None:
    bench = SupervisorBench()
    bench.supervisor.start([role("api")])
    for _ in range(5):
        bench.kill_newest()
        bench.seconds_until_restart()

    bench.clock.advance(HEALTHY_S)
    bench.kill_newest()

    assert bench.seconds_until_restart() == pytest.approx(BACKOFF_S_MIN, abs=0.05)


def test_a_failed_restart_counts_as_an_exit() -> None:
    bench = SupervisorBench()
    bench.supervisor.start([role("api")])
    bench.kill_newest()
    bench.refusals = 2

    assert bench.seconds_until_restart() == pytest.approx(0.2 + 0.4 + 0.8, abs=0.1)


def test_the_first_start_reports_a_program_that_cannot_run() -> None:
    bench = SupervisorBench()
    bench.refusals = 1

    with pytest.raises(OSError, match="temporarily"):
        bench.supervisor.start([role("api")])


def test_a_child_without_restart_is_not_restarted() -> None:
    bench = SupervisorBench()
    bench.supervisor.start([role("once", restart=False)])
    bench.kill_newest()

    bench.supervisor.run(lambda: bench.clock.now_s > 130)

    assert len(bench.processes) == 1
    assert bench.supervisor.pid("once") is None


def test_stages_stop_from_the_highest_to_the_lowest() -> None:
    bench = SupervisorBench(stops_in_s=lambda child: 1.0)
    bench.supervisor.start(
        [role("postgres", stage=0, stop_signal=signal.SIGINT), role("writer"), role("api", stage=2)]
    )

    bench.supervisor.stop()

    assert bench.events == [
        ("api", "SIGTERM"),
        ("api", "reaped"),
        ("writer", "SIGTERM"),
        ("writer", "reaped"),
        ("postgres", "SIGINT"),
        ("postgres", "reaped"),
    ]


def test_children_of_one_stage_stop_together() -> None:
    bench = SupervisorBench(stops_in_s=lambda child: 2.0)
    bench.supervisor.start([role(f"role-{n}") for n in range(9)])
    began_s = bench.clock.now_s

    bench.supervisor.stop()

    assert bench.clock.now_s - began_s == pytest.approx(2.0, abs=0.2)


def test_a_child_that_ignores_its_signal_is_killed_after_its_limit() -> None:
    bench = SupervisorBench(stops_in_s=lambda child: 60.0 if child.name == "deaf" else 0.5)
    bench.supervisor.start([role("deaf", stop_timeout_s=3.0), role("good")])
    began_s = bench.clock.now_s

    bench.supervisor.stop()

    assert bench.events.count(("deaf", "SIGKILL")) == 1
    assert ("good", "SIGKILL") not in bench.events
    assert bench.clock.now_s - began_s == pytest.approx(3.0, abs=0.2)


def test_all_stages_share_one_stop_limit() -> None:
    bench = SupervisorBench(stops_in_s=lambda child: 60.0)
    bench.supervisor.start([role(f"deaf-{n}", stage=n, stop_timeout_s=10.0) for n in range(5)])
    began_s = bench.clock.now_s

    bench.supervisor.stop()

    assert bench.clock.now_s - began_s <= STOP_S_MAX
    assert sum(event == "SIGKILL" for _, event in bench.events) == 5


def test_a_second_stop_does_nothing() -> None:
    bench = SupervisorBench()
    bench.supervisor.start([role("api")])
    bench.supervisor.stop()
    bench.supervisor.stop()
    bench.clock.advance(10)
    bench.supervisor.run_once()

    assert len(bench.processes) == 1


def test_a_wait_restarts_children_until_ready() -> None:
    bench = SupervisorBench()
    bench.supervisor.start([role("kafka")])
    bench.kill_newest()

    bench.supervisor.wait_until(lambda: len(bench.processes) == 2, timeout_s=5, what="Kafka")

    assert bench.supervisor.pid("kafka") == bench.processes[-1].pid


def test_a_wait_timeout_names_the_missing_part() -> None:
    bench = SupervisorBench()

    with pytest.raises(StackTimeoutError, match="Kafka is not ready after 5 s"):
        bench.supervisor.wait_until(lambda: False, timeout_s=5, what="Kafka")


def test_invalid_settings_of_a_child_end_the_wait(tmp_path: Path) -> None:
    (tmp_path / "gpu.log").write_text('noise\n{"event":"x","reason":"no such parser"}\n{half\n')
    bench = SupervisorBench(log_dir=tmp_path)
    bench.exit_code = 2
    bench.supervisor.start([role("gpu")])
    bench.kill_newest()
    with pytest.raises(SettingsRefusedError, match="gpu: no such parser"):
        bench.supervisor.wait_until(lambda: False, timeout_s=60, what="a model")


def test_a_wait_timeout_gives_the_exit_reasons(tmp_path: Path) -> None:
    (tmp_path / "writer.log").write_text('{"event":"the role ends","reason":"no broker"}\n')
    bench = SupervisorBench(log_dir=tmp_path)
    bench.supervisor.start([role("writer"), role("api")])
    bench.processes[0].ends_s = bench.clock.now_s

    with pytest.raises(StackTimeoutError, match="after 5 s; writer: no broker; see the logs"):
        bench.supervisor.wait_until(lambda: False, timeout_s=5, what="writer")


def test_invalid_settings_of_a_restarted_child_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "gpu.log").write_text('{"event":"the role ends","reason":"no such folder"}\n')
    bench = SupervisorBench(log_dir=tmp_path)
    bench.exit_code = 2
    bench.supervisor.start([role("api"), role("gpu")])
    bench.kill_newest()

    bench.supervisor.run(lambda: bench.clock.now_s > 130)

    assert bench.supervisor.pid("api") is not None
    assert bench.supervisor.restarts()["gpu"] == 1
    assert [r.reason for r in caplog.records] == ["exit code 2: no such folder"]  # type: ignore[attr-defined]


def test_a_large_log_is_rotated_while_its_child_writes(tmp_path: Path) -> None:
    bench = SupervisorBench(log_dir=tmp_path)
    bench.supervisor.start([role("api")])
    with (tmp_path / "api.log").open("ab") as written:
        written.truncate(LOG_BYTES_MAX + 1)
        bench.supervisor.run(lambda: bench.clock.now_s > 100 + 2 * LOGS_EVERY_S)
        written.write(b"more")

    assert (tmp_path / "api.log").read_bytes() == b"more"
    assert (tmp_path / "api.log.1").stat().st_size == LOG_BYTES_MAX + 1
