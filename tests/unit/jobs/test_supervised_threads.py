"""Goal: a role retries through a short database outage and stops at any other failure."""

import threading
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from core.clock import SystemClock
from jobs.supervised_threads import SupervisedThreads

JOIN_S_MAX = 20.0


def unavailable() -> None:
    raise sa.exc.OperationalError("SELECT 1", {}, Exception())


def broken() -> None:
    raise ValueError("broken")


def started(
    step: Callable[[], None], *, away_s_max: float = 60
) -> tuple[SupervisedThreads, threading.Event]:
    stop = threading.Event()
    threads = SupervisedThreads(stop, away_s_max=away_s_max, clock=SystemClock())
    threads.start_periodic(60, "waiting", lambda: None)
    threads.start_periodic(0.0, "writer", step)
    return threads, stop


def test_a_step_repeats_through_a_short_database_outage() -> None:
    steps, is_done = iter((lambda: None, unavailable)), threading.Event()

    def step() -> None:
        next(steps, is_done.set)()

    threads, stop = started(step)
    assert is_done.wait(JOIN_S_MAX)
    assert not stop.is_set()
    stop.set()
    threads.join(JOIN_S_MAX)


@pytest.mark.parametrize(
    ("step", "failure"), [(broken, ValueError), (unavailable, sa.exc.OperationalError)]
)
def test_a_failure_or_a_long_database_outage_stops_the_role(
    step: Callable[[], None], failure: type[Exception]
) -> None:
    threads, stop = started(step, away_s_max=0)
    assert stop.wait(JOIN_S_MAX)
    with pytest.raises(failure):
        threads.join(JOIN_S_MAX)
