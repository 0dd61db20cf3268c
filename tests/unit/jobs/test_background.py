"""Goal: a role survives its database for a while, and ends for anything else."""

import threading

import pytest
import sqlalchemy as sa

from core.clock import SystemClock
from jobs.supervised_threads import SupervisedThreads

JOIN_S_MAX = 10.0


def away() -> None:
    raise sa.exc.OperationalError("SELECT 1", {}, Exception())


def broken() -> None:
    raise ValueError("broken")


def test_a_step_is_repeated_until_the_role_stops() -> None:
    stop = threading.Event()
    steps: list[int] = []

    def step() -> None:
        steps.append(1)
        if len(steps) == 3:
            stop.set()

    background = SupervisedThreads(stop, away_s_max=60, clock=SystemClock())
    background.start_periodic(0.0, "counter", step)
    background.join(JOIN_S_MAX)
    assert len(steps) == 3


def test_a_failure_stops_the_role_and_is_told() -> None:
    stop = threading.Event()
    background = SupervisedThreads(stop, away_s_max=60, clock=SystemClock())
    background.start_periodic(60, "patient", lambda: None)
    background.start_periodic(0.0, "broken", broken)
    assert stop.wait(JOIN_S_MAX)
    with pytest.raises(ValueError, match="broken"):
        background.join(JOIN_S_MAX)


def test_a_database_that_comes_back_is_no_failure() -> None:
    stop = threading.Event()
    steps: list[int] = []

    def step() -> None:
        steps.append(1)
        if len(steps) == 1:
            away()
        stop.set()

    background = SupervisedThreads(stop, away_s_max=60, clock=SystemClock())
    background.start_periodic(0.0, "writer", step)
    background.join(JOIN_S_MAX)
    assert len(steps) == 2


def test_a_database_away_for_too_long_is_one() -> None:
    stop = threading.Event()
    background = SupervisedThreads(stop, away_s_max=0, clock=SystemClock())
    background.start_periodic(0.0, "writer", away)
    assert stop.wait(JOIN_S_MAX)
    with pytest.raises(sa.exc.OperationalError):
        background.join(JOIN_S_MAX)
