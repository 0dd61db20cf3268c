"""Goal: a wait ends with the job or its timeout, and the end has an exit code."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import openai
import pytest
from openai.types import Batch
from typer.testing import CliRunner

from cli.batch.job_progress import (
    POLL_S_MAX,
    POLL_S_MIN,
    POLL_TIMEOUT_S_MAX,
    POLL_TIMEOUT_S_MIN,
    UNAVAILABLE_S_MAX,
    JobStatus,
    job_exit_code,
    poll_pause_s,
    progress_of,
    wait_until_ended,
)
from cli.exits import ExitCode, WaitTimeoutError
from cli.main import app
from core.states import TERMINAL_STATES, JobState
from tests.support.clock import ManualClock
from tests.unit.cli.scripted_server import batch

OWN = {"succeeded": 4, "failed": 1, "cancelled": 2, "expired": 3, "pending": 0}


def unavailable() -> openai.APIConnectionError:
    return openai.APIConnectionError(request=httpx2.Request("GET", "http://127.0.0.1:9"))


def wait(
    answers: Iterator[Batch | Exception], clock: ManualClock, timeout_s: float | None
) -> Batch:
    def poll(_timeout_s: float) -> Batch:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return wait_until_ended(
        poll, lambda _: None, timeout_s=timeout_s, clock=clock, sleep=clock.advance
    )


def test_progress_uses_the_millrace_field() -> None:
    progress = progress_of(batch(millrace=OWN))

    assert progress == JobStatus(JobState.IN_PROGRESS, 10, 4, 1, 2, 3)
    assert progress.ended == 10


def test_progress_falls_back_to_request_counts() -> None:
    assert progress_of(batch()) == JobStatus(JobState.IN_PROGRESS, 10, 4, 1, 0, 0)
    assert progress_of(batch(request_counts=None)).ended == 0


@pytest.mark.parametrize("state", sorted(TERMINAL_STATES))
def test_terminal_state_has_an_exit_code(state: JobState) -> None:
    ended = progress_of(batch(state, millrace=OWN | {"failed": 0}))

    expected = ExitCode.OK if state is JobState.COMPLETED else ExitCode.JOB_FAILED
    assert job_exit_code(ended) is expected
    assert job_exit_code(progress_of(batch("completed"))) is ExitCode.ITEMS_FAILED


def test_wait_returns_the_ended_job() -> None:
    clock = ManualClock()
    answers = iter([batch("validating"), batch(), batch("finalizing"), batch("completed")])

    assert wait(answers, clock, None).status == "completed"
    assert clock.now_s == pytest.approx(3 * POLL_S_MIN)


def test_wait_times_out() -> None:
    clock = ManualClock()

    with pytest.raises(WaitTimeoutError):
        wait(iter([batch()] * 1000), clock, 30.0)

    assert 30.0 - POLL_S_MAX < clock.now_s <= 30.0


def test_wait_survives_a_server_restart() -> None:
    answers: list[Batch | Exception] = [batch(), unavailable(), unavailable(), batch("completed")]

    assert wait(iter(answers), ManualClock(), None).status == "completed"


def test_wait_fails_when_the_server_stays_unavailable() -> None:
    clock = ManualClock()

    with pytest.raises(openai.APIConnectionError):
        wait(iter([unavailable()] * 1000), clock, None)

    assert UNAVAILABLE_S_MAX < clock.now_s < UNAVAILABLE_S_MAX + 2 * POLL_S_MAX


@pytest.mark.parametrize(
    ("wait_s", "longest_s"), [(25.0, POLL_TIMEOUT_S_MAX), (0.0, POLL_TIMEOUT_S_MIN)]
)
def test_poll_timeouts_respect_the_wait_timeout(wait_s: float, longest_s: float) -> None:
    clock = ManualClock()
    timeouts_s: list[float] = []

    def poll(timeout_s: float) -> Batch:
        timeouts_s.append(timeout_s)
        clock.advance(timeout_s)
        raise openai.APITimeoutError(request=httpx2.Request("GET", "http://127.0.0.1:9"))

    with pytest.raises(WaitTimeoutError):
        wait_until_ended(poll, lambda _: None, timeout_s=wait_s, clock=clock, sleep=clock.advance)

    assert max(timeouts_s) == longest_s
    assert clock.now_s <= wait_s + POLL_TIMEOUT_S_MIN


def test_poll_pause_grows_within_bounds() -> None:
    pauses = [poll_pause_s(float(waited_s)) for waited_s in range(0, 1000, 10)]

    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (POLL_S_MIN, POLL_S_MAX)


@pytest.mark.parametrize(
    "arguments", [("watch", "batch_1"), ("submit", "in.jsonl", "--endpoint", "/v1/embeddings")]
)
def test_watch_times_out_when_the_server_does_not_answer(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_bytes(b"{}\n")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        env = {"MILLRACE_URL": url, "MILLRACE_KEY": "sk-none"}
        began_s = time.monotonic()
        done = CliRunner().invoke(app, ["batch", *arguments, "--timeout", "1"], env=env)

    assert done.exit_code == ExitCode.TIMEOUT, done.output
    assert time.monotonic() - began_s < 10
