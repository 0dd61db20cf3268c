"""Restarts child processes and stops them in order, all from one thread."""

import logging
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from cli.stack.errors import SettingsRefusedError, StackTimeoutError
from cli.stack.processes.child import Child, Process, rotate_log, spawn
from cli.stack.processes.child_logs import last_reason
from core.clock import Clock, SystemClock
from core.role_lifecycle import EXIT_INVALID_SETTINGS

BACKOFF_S_MIN = 0.2
HEALTHY_S = 30.0
"""Lifetime after which a child has recovered: its next exit counts as the first."""

STOP_S_MAX = 15.0
"""Longest stop of all stages together."""

KILL_RESERVE_S = 1.0
"""The part of `STOP_S_MAX` that is reserved for each later stage."""

POLL_S = 0.05

LOGS_EVERY_S = 10.0
"""Interval of the checks of log sizes."""

log = logging.getLogger(__name__)


def backoff_s(exit_count: int, longest_s: float) -> float:
    """Return the delay of a restart after `exit_count` exits in a row."""
    return min(longest_s, BACKOFF_S_MIN * 2.0 ** (min(exit_count, 10) - 1))


@dataclass(slots=True)
class _Watched:
    child: Child
    process: Process | None = None  # None between an exit and the next start
    started_s: float = 0.0
    due_s: float = 0.0
    exits_in_a_row: int = 0
    restarts: int = 0
    has_invalid_settings: bool = False


class Supervisor:
    """Runs children in the order of `start`. The owner must call `run_once` (or `run`) often."""

    def __init__(
        self,
        log_dir: Path,
        *,
        spawn: Callable[[Child, Path], Process] = spawn,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Write each child's output below `log_dir`."""
        self._log_dir = log_dir
        self._spawn = spawn
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._watched: dict[str, _Watched] = {}
        self._logs_due_s = self._clock.monotonic_s()

    def start(self, children: Iterable[Child]) -> None:
        """Start `children` in this order. Raises OSError when a program cannot be run."""
        for child in children:
            assert child.name not in self._watched, child.name
            watched = _Watched(child)
            self._spawn_child(watched)
            self._watched[child.name] = watched

    def run_once(self) -> None:
        """Reap ended children, restart those whose delay is over, rotate logs; never block."""
        now_s = self._clock.monotonic_s()
        for watched in self._watched.values():
            if watched.process is not None and watched.process.has_ended():
                self._handle_exit(watched, watched.process, now_s)
            elif watched.process is None and watched.child.restart and now_s >= watched.due_s:
                self._restart(watched, now_s)
        if now_s >= self._logs_due_s:
            self._logs_due_s = now_s + LOGS_EVERY_S
            for name in self._watched:
                rotate_log(self._log_path(name))

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Keep the children running until `should_stop`; the caller then calls `stop`."""
        while not should_stop():
            self.run_once()
            self._sleep(POLL_S)

    def wait_until(self, ready: Callable[[], bool], *, timeout_s: float, what: str) -> None:
        """Keep the children running until `ready`. Raises StackTimeoutError, which names `what`.

        Raises SettingsRefusedError for a child with invalid settings: a restart would not help.
        """
        deadline_s = self._clock.monotonic_s() + timeout_s
        while not ready():
            self.run_once()
            self._require_settings()
            if self._clock.monotonic_s() > deadline_s:
                raise StackTimeoutError(
                    f"{what} is not ready after {timeout_s:g} s; {self._exit_reasons()}"
                )
            self._sleep(POLL_S)

    def pid(self, name: str) -> int | None:
        """Return the process id of a child, or None while it does not run."""
        process = self._watched[name].process
        return None if process is None or process.has_ended() else process.pid

    def restarts(self) -> dict[str, int]:
        """Return the number of restarts of each child."""
        return {name: watched.restarts for name, watched in self._watched.items()}

    def stop(self, *, within_s: float = STOP_S_MAX) -> None:
        """Stop every child, the highest stage first; return within `within_s`.

        1. Signal all children of a stage. 2. Wait up to their own limits and the remaining time.
        3. Kill the remaining process groups. A second stop does nothing.
        """
        deadline_s = self._clock.monotonic_s() + within_s
        order = list(self._watched.values())[::-1]
        order.sort(key=lambda watched: -watched.child.stage)
        stages = [list(stage) for _, stage in groupby(order, key=lambda w: w.child.stage)]
        for later, stage in zip(reversed(range(len(stages))), stages, strict=True):
            self._stop_stage(stage, deadline_s - KILL_RESERVE_S * (later + 1))
        self._watched.clear()

    def _stop_stage(self, stage: list[_Watched], deadline_s: float) -> None:
        alive = [(w.child, w.process) for w in stage if w.process is not None]
        started_s = self._clock.monotonic_s()
        for child, process in alive:
            process.send(child.stop_signal)
        for child, process in alive:
            limit_s = min(deadline_s, started_s + child.stop_timeout_s)
            while not process.has_ended() and self._clock.monotonic_s() < limit_s:
                self._sleep(POLL_S / 5)
        for child, process in alive:
            if not process.has_ended():
                log.warning("child_killed", extra={"child": child.name})
                process.send(signal.SIGKILL)
            process.reap()

    def _require_settings(self) -> None:
        for name, watched in self._watched.items():
            if watched.has_invalid_settings:
                log_path = self._log_path(name)
                raise SettingsRefusedError(f"{name}: {last_reason(log_path) or log_path}")

    def _exit_reasons(self) -> str:
        """Return the exit reasons of failing children, and the folder of the logs."""
        failing = [name for name, watched in self._watched.items() if watched.exits_in_a_row]
        reasons = [
            f"{name}: {reason}" for name in failing if (reason := last_reason(self._log_path(name)))
        ]
        return "; ".join([*reasons, f"see the logs in {self._log_dir}"])

    def _log_path(self, name: str) -> Path:
        return self._log_dir / f"{name}.log"

    def _spawn_child(self, watched: _Watched) -> None:
        watched.process = self._spawn(watched.child, self._log_dir)
        watched.started_s = self._clock.monotonic_s()

    def _restart(self, watched: _Watched, now_s: float) -> None:
        watched.restarts += 1
        try:
            self._spawn_child(watched)
        except OSError as error:  # out of memory or processes: retried like an exit
            self._postpone(watched, now_s, f"cannot start: {error.strerror}")

    def _handle_exit(self, watched: _Watched, process: Process, now_s: float) -> None:
        code = process.reap()
        watched.process = None
        watched.has_invalid_settings = code == EXIT_INVALID_SETTINGS
        if now_s - watched.started_s >= HEALTHY_S:
            watched.exits_in_a_row = 0
        suffix = (
            f": {last_reason(self._log_path(watched.child.name))}"
            if watched.has_invalid_settings
            else ""
        )
        self._postpone(watched, now_s, f"exit code {code}{suffix}")

    def _postpone(self, watched: _Watched, now_s: float, reason: str) -> None:
        watched.exits_in_a_row += 1
        wait_s = backoff_s(watched.exits_in_a_row, watched.child.backoff_s_max)
        watched.due_s = now_s + wait_s
        log.warning(
            "child_died",
            extra={"child": watched.child.name, "reason": reason, "restart_in_s": wait_s},
        )
