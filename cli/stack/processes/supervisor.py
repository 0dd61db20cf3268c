"""Keeps children running and stops them in order; it never forks from a thread."""

import logging
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from cli.stack.errors import SettingsRefusedError, StackTimeoutError
from cli.stack.processes.child import Child, RunningChild, shorten_log, spawn
from cli.stack.processes.exit_reason import last_exit_reason
from core.clock import Clock, SystemClock
from core.role_life import WRONG_SETTINGS

BACKOFF_S_MIN = 0.2
HEALTHY_S = 30.0
"""A child that lived this long has recovered: its next death counts as the first."""

STOP_S_MAX = 15.0
"""Seconds from the stop signal until nothing is left, over all stages."""

KILL_RESERVE_S = 1.0
"""Of `STOP_S_MAX`, what each later stage keeps for itself."""

POLL_S = 0.05

LOGS_EVERY_S = 10.0
"""How often the size of logs is looked at."""

log = logging.getLogger(__name__)


def backoff_s(deaths: int, longest_s: float) -> float:
    """Seconds to wait before a start that follows `deaths` deaths in a row."""
    return min(longest_s, BACKOFF_S_MIN * 2.0 ** (min(deaths, 10) - 1))


@dataclass(slots=True)
class _Watched:
    child: Child
    process: RunningChild | None = None  # None between a death and the next start
    started_s: float = 0.0
    due_s: float = 0.0
    deaths: int = 0  # in a row
    restarts: int = 0  # ever
    refused: bool = False  # it ended because of its settings


class Supervisor:
    """Runs children in the order of `start`. Its owner calls `step` (or `run`) all the time."""

    def __init__(
        self,
        log_dir: Path,
        *,
        spawn: Callable[[Child, Path], RunningChild] = spawn,
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
            self._begin(watched)
            self._watched[child.name] = watched

    def run_once(self) -> None:
        """Bury the dead, start those whose wait is over, shorten logs. Waits for nothing."""
        now_s = self._clock.monotonic_s()
        for watched in self._watched.values():
            if watched.process is not None and watched.process.has_ended():
                self._mourn(watched, watched.process, now_s)
            elif watched.process is None and watched.child.restart and now_s >= watched.due_s:
                self._begin_again(watched, now_s)
        if now_s >= self._logs_due_s:
            self._logs_due_s = now_s + LOGS_EVERY_S
            for name in self._watched:
                shorten_log(self._log_path(name))

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Keep the children running until `should_stop`; the caller then calls `stop`."""
        while not should_stop():
            self.run_once()
            self._sleep(POLL_S)

    def wait_until(self, ready: Callable[[], bool], *, timeout_s: float, what: str) -> None:
        """Keep the children running until `ready`. Raises StackTimeoutError, naming `what`.

        Raises SettingsRefusedError for a child that no further start would help.
        """
        deadline_s = self._clock.monotonic_s() + timeout_s
        while not ready():
            self.run_once()
            self._require_settings()
            if self._clock.monotonic_s() > deadline_s:
                raise StackTimeoutError(
                    f"{what} is not ready after {timeout_s:g} s; {self._told_by_the_dead()}"
                )
            self._sleep(POLL_S)

    def pid(self, name: str) -> int | None:
        """The process id of the child, or None while it is dead."""
        process = self._watched[name].process
        return None if process is None or process.has_ended() else process.pid

    def restart_counts(self) -> dict[str, int]:
        """How often each child was started again."""
        return {name: watched.restarts for name, watched in self._watched.items()}

    def stop(self, *, within_s: float = STOP_S_MAX) -> None:
        """Stop every child, the highest stage first; return within `within_s`.

        1. Signal all of a stage. 2. Wait for them, at most the longest of their own limits and
        what the budget allows. 3. Kill what is left, with its process group. Stopping twice is
        legal.
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
        began_s = self._clock.monotonic_s()
        for child, process in alive:
            process.send(child.stop_signal)
        for child, process in alive:
            limit_s = min(deadline_s, began_s + child.stop_timeout_s)
            while not process.has_ended() and self._clock.monotonic_s() < limit_s:
                self._sleep(POLL_S / 5)
        for child, process in alive:
            if not process.has_ended():
                log.warning("child_killed", extra={"child": child.name})
                process.send(signal.SIGKILL)
            process.kill_and_reap()

    def _require_settings(self) -> None:
        for name, watched in self._watched.items():
            if watched.refused:
                log_path = self._log_path(name)
                raise SettingsRefusedError(f"{name}: {last_exit_reason(log_path) or log_path}")

    def _told_by_the_dead(self) -> str:
        """Return the last words of those that died again and again, and where the logs are."""
        died = [name for name, watched in self._watched.items() if watched.deaths]
        told = [
            f"{name}: {reason}"
            for name in died
            if (reason := last_exit_reason(self._log_path(name)))
        ]
        return "; ".join([*told, f"see the logs in {self._log_dir}"])

    def _log_path(self, name: str) -> Path:
        return self._log_dir / f"{name}.log"

    def _begin(self, watched: _Watched) -> None:
        watched.process = self._spawn(watched.child, self._log_dir)
        watched.started_s = self._clock.monotonic_s()

    def _begin_again(self, watched: _Watched, now_s: float) -> None:
        watched.restarts += 1
        try:
            self._begin(watched)
        except OSError as error:  # no memory or no process to be had: a death like any other
            self._postpone(watched, now_s, f"cannot start: {error.strerror}")

    def _mourn(self, watched: _Watched, process: RunningChild, now_s: float) -> None:
        code = process.kill_and_reap()
        watched.process = None
        watched.refused = code == WRONG_SETTINGS
        if now_s - watched.started_s >= HEALTHY_S:
            watched.deaths = 0
        told = f": {last_exit_reason(self._log_path(watched.child.name))}" if watched.refused else ""
        self._postpone(watched, now_s, f"exit code {code}{told}")

    def _postpone(self, watched: _Watched, now_s: float, reason: str) -> None:
        watched.deaths += 1
        wait_s = backoff_s(watched.deaths, watched.child.backoff_s_max)
        watched.due_s = now_s + wait_s
        log.warning(
            "child_died",
            extra={"child": watched.child.name, "reason": reason, "restart_in_s": wait_s},
        )
