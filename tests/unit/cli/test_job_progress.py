"""Goal: a wait ends with the job or its timeout, and the end has an exit code."""

from collections.abc import Iterator
from dataclasses import dataclass

import httpx2
import openai
import pytest
from openai.types import Batch

from cli.batch.job_progress import (
    POLL_S_MAX,
    POLL_S_MIN,
    POLL_TIMEOUT_S_MAX,
    POLL_TIMEOUT_S_MIN,
    UNAVAILABLE_S_MAX,
    JobProgress,
    job_exit_code,
    poll_pause_s,
    progress_of,
    wait_until_ended,
)
from cli.exits import ExitCode, WaitTimeoutError
from core.states import TERMINAL_STATES, JobState
from tests.unit.cli.batches import batch

OWN = {"succeeded": 4, "failed": 1, "cancelled": 2, "expired": 3, "pending": 0}


@dataclass
class FakeTime:
    now_s: float = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def away() -> openai.APIConnectionError:
    return openai.APIConnectionError(request=httpx2.Request("GET", "http://127.0.0.1:9"))


def wait(answers: Iterator[Batch | Exception], time: FakeTime, timeout_s: float | None) -> Batch:
    def look(_timeout_s: float) -> Batch:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return wait_until_ended(look, lambda _: None, timeout_s=timeout_s, clock=time, sleep=time.sleep)


def test_progress_uses_the_millrace_field() -> None:
    progress = progress_of(batch(millrace=OWN))

    assert progress == JobProgress(JobState.IN_PROGRESS, 10, 4, 1, 2, 3)
    assert progress.ended == 10


def test_progress_falls_back_to_request_counts() -> None:
    assert progress_of(batch()) == JobProgress(JobState.IN_PROGRESS, 10, 4, 1, 0, 0)
    assert progress_of(batch(request_counts=None)).ended == 0


@pytest.mark.parametrize("state", sorted(TERMINAL_STATES))
def test_terminal_state_has_an_exit_code(state: JobState) -> None:
    ended = progress_of(batch(state, millrace=OWN | {"failed": 0}))

    expected = ExitCode.OK if state is JobState.COMPLETED else ExitCode.JOB_FAILED
    assert job_exit_code(ended) is expected


def test_failed_items_have_an_exit_code() -> None:
    assert job_exit_code(progress_of(batch("completed"))) is ExitCode.ITEMS_FAILED


def test_wait_returns_the_ended_job() -> None:
    time = FakeTime()
    answers = iter([batch("validating"), batch(), batch("finalizing"), batch("completed")])

    assert wait(answers, time, None).status == "completed"
    assert time.now_s == pytest.approx(3 * POLL_S_MIN)


def test_wait_times_out() -> None:
    time = FakeTime()

    with pytest.raises(WaitTimeoutError):
        wait(iter([batch()] * 1000), time, 30.0)

    assert 30.0 - POLL_S_MAX < time.now_s <= 30.0


def test_wait_survives_a_server_restart() -> None:
    answers: list[Batch | Exception] = [batch(), away(), away(), batch("completed")]

    assert wait(iter(answers), FakeTime(), None).status == "completed"


def test_wait_fails_when_the_server_stays_unavailable() -> None:
    time = FakeTime()

    with pytest.raises(openai.APIConnectionError):
        wait(iter([away()] * 1000), time, None)

    assert UNAVAILABLE_S_MAX < time.now_s < UNAVAILABLE_S_MAX + 2 * POLL_S_MAX


def test_poll_timeouts_respect_the_wait_timeout() -> None:
    time = FakeTime()
    looks_s: list[float] = []

    def look(timeout_s: float) -> Batch:
        looks_s.append(timeout_s)
        time.sleep(timeout_s)
        raise openai.APITimeoutError(request=httpx2.Request("GET", "http://127.0.0.1:9"))

    with pytest.raises(WaitTimeoutError):
        wait_until_ended(look, lambda _: None, timeout_s=25.0, clock=time, sleep=time.sleep)

    assert max(looks_s) == POLL_TIMEOUT_S_MAX
    assert time.now_s <= 25.0 + POLL_TIMEOUT_S_MIN


def test_poll_timeout_has_a_minimum() -> None:
    looks_s: list[float] = []

    def look(timeout_s: float) -> Batch:
        looks_s.append(timeout_s)
        return batch("completed")

    time = FakeTime()
    wait_until_ended(look, lambda _: None, timeout_s=0.0, clock=time, sleep=time.sleep)

    assert looks_s == [POLL_TIMEOUT_S_MIN]


def test_poll_pause_grows_within_bounds() -> None:
    pauses = [poll_pause_s(float(waited_s)) for waited_s in range(0, 1000, 10)]

    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (POLL_S_MIN, POLL_S_MAX)
