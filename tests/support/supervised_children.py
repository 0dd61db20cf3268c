"""A supervisor on a manual clock, whose processes are scripted."""

import signal
from collections.abc import Callable
from pathlib import Path

from cli.stack.processes.child import Child, ChildProcess
from cli.stack.processes.supervisor import Supervisor
from tests.support.clock import ManualClock


class ScriptedProcess(ChildProcess):
    """A process that exits at a time that the test sets."""

    def __init__(self, stack: "SupervisedStack", child: Child, pid: int) -> None:
        self.stack, self.child, self._pid = stack, child, pid
        self.ends_s: float | None = None

    @property
    def pid(self) -> int:
        return self._pid

    def has_ended(self) -> bool:
        return self.ends_s is not None and self.stack.clock.now_s >= self.ends_s

    def send(self, number: signal.Signals) -> None:
        self.stack.events.append((self.child.name, number.name))
        stop_s = 0.0 if number is signal.SIGKILL else self.stack.stops_in_s(self.child)
        self.ends_s = self.stack.clock.now_s + stop_s

    def kill_and_reap(self) -> int:
        self.stack.events.append((self.child.name, "reaped"))
        return self.stack.exit_code


class SupervisedStack:
    """A supervisor on a manual clock with scripted processes, which it starts."""

    def __init__(
        self,
        *children: Child,
        stops_in_s: Callable[[Child], float] = lambda child: 0.0,
        log_dir: Path = Path("unused"),
        exit_code: int = 1,
    ) -> None:
        self.clock = ManualClock(now_s=100.0)
        self.events: list[tuple[str, str]] = []
        self.stops_in_s = stops_in_s
        self.processes: list[ScriptedProcess] = []
        self.failing_starts = 0
        self.exit_code = exit_code
        self.supervisor = Supervisor(
            log_dir, spawn=self.spawn, clock=self.clock, sleep=self.clock.advance
        )
        self.supervisor.start(children)

    def spawn(self, child: Child, log_dir: Path) -> ScriptedProcess:
        if self.failing_starts:
            self.failing_starts -= 1
            raise OSError(11, "Resource temporarily unavailable")
        process = ScriptedProcess(self, child, 1000 + len(self.processes))
        self.processes.append(process)
        return process

    def end_newest(self) -> None:
        self.processes[-1].ends_s = self.clock.now_s

    def seconds_to_stop(self) -> float:
        began_s = self.clock.now_s
        self.supervisor.stop()
        return self.clock.now_s - began_s

    def seconds_until_restart(self) -> float:
        count, began_s = len(self.processes), self.clock.now_s
        while len(self.processes) == count:
            self.supervisor.run_once()
            self.clock.advance(0.01)
            assert self.clock.now_s < began_s + 60
        return self.clock.now_s - began_s


def role(name: str, **options: object) -> Child:
    return Child(name=name, argv=("true",), **options)  # type: ignore[arg-type]
