"""Restarts child processes that exit and stops them in order. It never forks from a thread.

Children come and go while it runs: a retired child gets its signal and time to drain, is killed
when that time is over, and is never restarted. Its name is taken until its process has ended.
"""

import logging
import math
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from cli.stack.errors import SettingsRefusedError, StackTimeoutError
from cli.stack.processes.child import Child, ChildProcess, last_exit_reason, rotate_log, spawn
from core.clock import Clock, SystemClock
from core.runtime.role_lifecycle import EXIT_INVALID_SETTINGS

BACKOFF_S_MIN = 0.2
HEALTHY_S = 30.0
"""A child that ran this long resets its backoff."""

STOP_S_MAX = 15.0
"""Longest time of `stop`, over all stages."""

KILL_RESERVE_S = 1.0
"""The part of `STOP_S_MAX` that is reserved for each later stage."""

POLL_S = 0.05

LOGS_EVERY_S = 10.0
"""Interval of the log rotation."""

log = logging.getLogger(__name__)


def backoff_s(exits: int, longest_s: float) -> float:
    """Return the wait before a restart that follows `exits` consecutive exits."""
    return min(longest_s, BACKOFF_S_MIN * 2.0 ** (min(exits, 10) - 1))


@dataclass(slots=True)
class _Supervised:
    child: Child
    process: ChildProcess | None = None  # None between an exit and the restart
    started_s: float = 0.0
    restart_at_s: float = 0.0
    exits: int = 0  # consecutive
    restarts: int = 0  # in total
    refused_settings: bool = False  # the exit code of the last exit
    kill_at_s: float | None = None  # of a retired child


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildState:
    """A child as the supervisor sees it."""

    name: str
    pid: int | None  # None while it does not run
    restarts: int
    is_retiring: bool


class Supervisor:
    """Starts children in order and keeps them running while its owner calls `run_once` or `run`."""

    def __init__(
        self,
        log_dir: Path,
        *,
        spawn: Callable[[Child, Path], ChildProcess] = spawn,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Write the output of each child to a file in `log_dir`."""
        self._log_dir = log_dir
        self._spawn = spawn
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._supervised: dict[str, _Supervised] = {}
        self._rotate_at_s = self._clock.monotonic_s()
        self._tasks: list[Callable[[], None]] = []

    def start(self, children: Iterable[Child]) -> None:
        """Start `children` in this order. Raises OSError when a program cannot be run."""
        for child in children:
            assert child.name not in self._supervised, child.name
            supervised = _Supervised(child)
            self._spawn_child(supervised)
            self._supervised[child.name] = supervised

    def add(self, child: Child) -> None:
        """Start one more child. A start that fails is repeated with backoff, like a restart."""
        assert child.name not in self._supervised, child.name
        supervised = self._supervised[child.name] = _Supervised(child)
        try:
            self._spawn_child(supervised)
        except OSError as error:
            reason = f"cannot start: {error.strerror}"
            self._schedule_restart(supervised, self._clock.monotonic_s(), reason)

    def retire(self, name: str) -> None:
        """End one child for good; `run_once` kills it when `drain_timeout_s` is over.

        Returns at once. Does nothing for a child that is retiring. Its log stays. Raises KeyError.
        """
        supervised = self._supervised[name]
        if supervised.kill_at_s is not None:
            return
        if supervised.process is None:
            del self._supervised[name]
            return
        drain_s = supervised.child.drain_timeout_s
        supervised.kill_at_s = self._clock.monotonic_s() + drain_s
        log.info("child_retired", extra={"child": name, "drain_s_max": drain_s})
        supervised.process.send(supervised.child.stop_signal)

    def children(self, role: str) -> list[ChildState]:
        """Return the children of a role in the order of their start, retiring ones included."""
        return [
            ChildState(
                name=name,
                pid=self.pid(name),
                restarts=supervised.restarts,
                is_retiring=supervised.kill_at_s is not None,
            )
            for name, supervised in self._supervised.items()
            if supervised.child.role == role
        ]

    def repeat_task(self, task: Callable[[], None]) -> None:
        """Call `task` at the end of each `run_once`. It must not block; it may add and retire."""
        self._tasks.append(task)

    def run_once(self) -> None:
        """Reap exited children, restart those whose backoff has passed, rotate logs, run tasks.

        Does not block.
        """
        now_s = self._clock.monotonic_s()
        for supervised in list(self._supervised.values()):
            if supervised.kill_at_s is not None:
                self._watch_drain(supervised, now_s)
            elif supervised.process is not None:
                if supervised.process.has_ended():
                    self._record_exit(supervised, supervised.process, now_s)
            elif supervised.child.restart and now_s >= supervised.restart_at_s:
                self._restart(supervised, now_s)
        if now_s >= self._rotate_at_s:
            self._rotate_at_s = now_s + LOGS_EVERY_S
            for name in self._supervised:
                rotate_log(self._log_path(name))
        for task in self._tasks:
            task()

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Keep the children running until `should_stop`; the caller then calls `stop`."""
        while not should_stop():
            self.run_once()
            self._sleep(POLL_S)

    def wait_until(self, ready: Callable[[], bool], *, timeout_s: float, what: str) -> None:
        """Keep the children running until `ready`.

        Raises StackTimeoutError, which names `what`, and SettingsRefusedError for a child that
        rejected its settings: a restart cannot help.
        """
        deadline_s = self._clock.monotonic_s() + timeout_s
        while not ready():
            self.run_once()
            self._require_accepted_settings()
            if self._clock.monotonic_s() > deadline_s:
                raise StackTimeoutError(
                    f"{what} is not ready after {timeout_s:g} s; {self._exit_reasons()}"
                )
            self._sleep(POLL_S)

    def pid(self, name: str) -> int | None:
        """The process id of the child, or None while it does not run."""
        process = self._supervised[name].process
        return None if process is None or process.has_ended() else process.pid

    def restart_counts(self) -> dict[str, int]:
        """The number of restarts by child."""
        return {name: supervised.restarts for name, supervised in self._supervised.items()}

    def stop(self, *, within_s: float = STOP_S_MAX) -> None:
        """Stop every child within `within_s`, the highest stage first. May be called again.

        1. Signal all children of a stage, again those that were retired. 2. Wait for each, at most
        its own timeout and the rest of the time. 3. Kill the process groups of those that still
        run.
        """
        self._tasks.clear()
        deadline_s = self._clock.monotonic_s() + within_s
        order = list(self._supervised.values())[::-1]
        order.sort(key=lambda supervised: -supervised.child.stage)
        stages = [list(stage) for _, stage in groupby(order, key=lambda s: s.child.stage)]
        for later, stage in zip(reversed(range(len(stages))), stages, strict=True):
            self._stop_stage(stage, deadline_s - KILL_RESERVE_S * (later + 1))
        self._supervised.clear()

    def _stop_stage(self, stage: list[_Supervised], deadline_s: float) -> None:
        running = [(s.child, s.process) for s in stage if s.process is not None]
        began_s = self._clock.monotonic_s()
        for child, process in running:
            process.send(child.stop_signal)
        for child, process in running:
            limit_s = min(deadline_s, began_s + child.stop_timeout_s)
            while not process.has_ended() and self._clock.monotonic_s() < limit_s:
                self._sleep(POLL_S / 5)
        for child, process in running:
            if not process.has_ended():
                log.warning("child_killed", extra={"child": child.name})
                process.send(signal.SIGKILL)
            process.kill_and_reap()

    def _require_accepted_settings(self) -> None:
        for name, supervised in self._supervised.items():
            if supervised.refused_settings:
                log_path = self._log_path(name)
                raise SettingsRefusedError(f"{name}: {last_exit_reason(log_path) or log_path}")

    def _exit_reasons(self) -> str:
        """Return the logged reasons of children that exited, and the folder of the logs."""
        exited = [name for name, supervised in self._supervised.items() if supervised.exits]
        reasons = [
            f"{name}: {reason}"
            for name in exited
            if (reason := last_exit_reason(self._log_path(name)))
        ]
        return "; ".join([*reasons, f"see the logs in {self._log_dir}"])

    def _log_path(self, name: str) -> Path:
        return self._log_dir / f"{name}.log"

    def _watch_drain(self, supervised: _Supervised, now_s: float) -> None:
        """Kill a retired child whose time is over; forget it once it has ended.

        A killed process may take seconds to end: it frees its GPU first.
        """
        name, process = supervised.child.name, supervised.process
        assert process is not None
        assert supervised.kill_at_s is not None
        if process.has_ended():
            code = process.kill_and_reap()
            del self._supervised[name]
            log.info("child_ended", extra={"child": name, "exit_code": code})
        elif now_s >= supervised.kill_at_s:
            supervised.kill_at_s = math.inf
            log.warning("child_killed", extra={"child": name})
            process.send(signal.SIGKILL)

    def _spawn_child(self, supervised: _Supervised) -> None:
        supervised.process = self._spawn(supervised.child, self._log_dir)
        supervised.started_s = self._clock.monotonic_s()

    def _restart(self, supervised: _Supervised, now_s: float) -> None:
        supervised.restarts += 1
        try:
            self._spawn_child(supervised)
        except OSError as error:  # such as no memory: back off as after an exit
            self._schedule_restart(supervised, now_s, f"cannot start: {error.strerror}")

    def _record_exit(self, supervised: _Supervised, process: ChildProcess, now_s: float) -> None:
        code = process.kill_and_reap()
        supervised.process = None
        supervised.refused_settings = code == EXIT_INVALID_SETTINGS
        if now_s - supervised.started_s >= HEALTHY_S:
            supervised.exits = 0
        reason = f"exit code {code}"
        if supervised.refused_settings:
            reason += f": {last_exit_reason(self._log_path(supervised.child.name))}"
        self._schedule_restart(supervised, now_s, reason)

    def _schedule_restart(self, supervised: _Supervised, now_s: float, reason: str) -> None:
        supervised.exits += 1
        wait_s = backoff_s(supervised.exits, supervised.child.backoff_s_max)
        supervised.restart_at_s = now_s + wait_s
        log.warning(
            "child_died",
            extra={"child": supervised.child.name, "reason": reason, "restart_in_s": wait_s},
        )
