"""Goal: a role retries through a short database outage and stops at any other failure."""

import threading

import pytest
import sqlalchemy as sa

from core.clock import SystemClock
from jobs.supervised_threads import SupervisedThreads

JOIN_S_MAX = 10.0


def unavailable() -> None:
    raise sa.exc.OperationalError("SELECT 1", {}, Exception())


def broken() -> None:
    raise ValueError("broken")


def test_a_step_repeats_until_stop() -> None:
    stop = threading.Event()
    steps: list[int] = []

    def step() -> None:
        steps.append(1)
        if len(steps) == 3:
            stop.set()

    threads = SupervisedThreads(stop, away_s_max=60, clock=SystemClock())
    threads.start_periodic(0.0, "counter", step)
    threads.join(JOIN_S_MAX)
    assert len(steps) == 3


def test_a_failure_stops_the_role_and_is_raised_by_join() -> None:
    stop = threading.Event()
    threads = SupervisedThreads(stop, away_s_max=60, clock=SystemClock())
    threads.start_periodic(60, "waiting", lambda: None)
    threads.start_periodic(0.0, "broken", broken)
    assert stop.wait(JOIN_S_MAX)
    with pytest.raises(ValueError, match="broken"):
        threads.join(JOIN_S_MAX)


def test_a_short_database_outage_is_retried() -> None:
    stop = threading.Event()
    steps: list[int] = []

    def step() -> None:
        steps.append(1)
        if len(steps) == 1:
            unavailable()
        stop.set()

    threads = SupervisedThreads(stop, away_s_max=60, clock=SystemClock())
    threads.start_periodic(0.0, "writer", step)
    threads.join(JOIN_S_MAX)
    assert len(steps) == 2


def test_a_long_database_outage_stops_the_role() -> None:
    stop = threading.Event()
    threads = SupervisedThreads(stop, away_s_max=0, clock=SystemClock())
    threads.start_periodic(0.0, "writer", unavailable)
    assert stop.wait(JOIN_S_MAX)
    with pytest.raises(sa.exc.OperationalError):
        threads.join(JOIN_S_MAX)
