"""Goal: a job is shown completely, and a wait ends with the job or its timeout."""

import socket
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import typer
from openai.types import Batch
from rich.progress import Progress
from typer.testing import CliRunner

from cli.admin.webhook_commands import last_try_text, state_text
from cli.batch.background_job_commands import job_fields
from cli.batch.batch_commands import metadata_pairs
from cli.batch.dead_letter_commands import letter_fields, letter_row, merge_edits
from cli.batch.job_display import (
    LIST_HEADERS,
    EndColumn,
    JobDisplay,
    end_text,
    estimate_rows,
    list_row,
    print_outcome,
    status_rows,
)
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
from cli.load.bench_online_command import measure_rows, measures
from cli.load.load_client import LoadMeasurement
from cli.main import app
from core.states import TERMINAL_STATES, JobState
from tests.support.clock import ManualClock
from tests.unit.cli.scripted_server import batch

INVALID = {
    "object": "list",
    "data": [
        {"code": "invalid_json_line", "line": n, "message": "It is not JSON."} for n in range(1, 8)
    ],
}


def test_metadata_is_parsed() -> None:
    assert metadata_pairs(["a=1", "b=x=y", "a=2"]) == {"a": "2", "b": "x=y"}


@pytest.mark.parametrize("text", ["a", "=1", ""])
def test_invalid_metadata_is_wrong_usage(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        metadata_pairs([text])


def test_status_omits_empty_fields() -> None:
    rows = dict(status_rows(batch()))

    assert len(list_row(batch())) == len(LIST_HEADERS)
    assert rows["items"] == "10"
    assert rows["created"] == "1970-01-01T00:00:00+00:00"
    assert "output file" not in rows


def test_status_shows_the_end_and_what_items_wait_for() -> None:
    eta = {"p50": 60, "p90": 120, "miss_probability": 0.25, "queue_s": 7.4, "reason": None}
    rows = dict(estimate_rows({"eta": eta, "waiting": {"fair_turn": 2, "pool_full": 30}}))
    assert rows == {
        "ends about": "1970-01-01T00:01:00+00:00, 9 of 10 by 1970-01-01T00:02:00+00:00",
        "expires first": "probability 25%",
        "next turn in": "7 s",
        "waiting": "30 pool full, 2 fair turn",
    }
    unknown = dict.fromkeys(eta) | {"reason": "no_replica"}
    assert dict(estimate_rows({"eta": unknown}))["ends about"] == "not known: no_replica"
    assert not any(text for _, text in estimate_rows({}))


def test_status_shows_the_first_validation_errors() -> None:
    rows = status_rows(batch("failed", errors=INVALID))
    errors = [text for name, text in rows if name == "error"]

    assert errors[0] == "line 1: It is not JSON. (invalid_json_line)"
    assert errors[-1].startswith("and 2 more")


@pytest.mark.parametrize(
    ("extension", "shown"),
    [
        ({"eta": {"p50": 90_000}}, "ends 1970-01-02T01:00:00+00:00"),
        ({"eta": {"p50": None, "reason": "paused"}}, ""),
        ({}, "00:20"),  # of a server of an earlier release: 40 items in 20 s, and 40 are left
    ],
)
def test_the_end_is_the_estimated_one_or_follows_from_the_rate(
    extension: dict[str, Any], shown: str
) -> None:
    now_s = 0.0
    progress = Progress(EndColumn(compact=True), disable=True, get_time=lambda: now_s)
    task_id = progress.add_task("batch_1", total=100, ends=end_text(extension))
    progress.update(task_id, completed=20)
    now_s = 20.0
    progress.update(task_id, completed=60)
    assert EndColumn(compact=True).render(progress.tasks[0]).plain == shown


def test_display_without_terminal_writes_a_line_per_state_unless_quiet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for quiet in (False, True):
        with JobDisplay("batch_1", quiet=quiet) as display:
            for state in ("validating", "in_progress", "in_progress", "completed"):
                display.show(batch(state))

    written = capsys.readouterr()
    assert written.out == ""
    lines = [line.split()[1] for line in written.err.splitlines()]
    assert lines == ["validating", "in_progress", "completed"]

    print_outcome(batch("completed", output_file_id="file-2", error_file_id="file-3"), None, None)
    written = capsys.readouterr()
    assert written.out == ""
    assert "millrace batch results batch_1 -o FILE --errors FILE" in written.err


LETTER = {
    "id": "dead_00_3",
    "batch_id": "batch_00",
    "index": 0,
    "custom_id": "a",
    "code": "broken",
    "message": None,
    "status_code": 500,
    "attempts": 2,
    "failed_at": 0,
    "redriven_by": None,
    "history": [{"attempt": 1, "failed_at": 0, "code": "slow", "status_code": None}],
}


def test_set_options_override_the_edit_file() -> None:
    patch = b'{"max_tokens": 5, "options": {"a": 1}}'
    sets = ["max_tokens=64", "options.b.c=true", "user=me", "stop=null", "note=a=b"]
    assert merge_edits(patch, sets) == {
        "max_tokens": 64,
        "options": {"a": 1, "b": {"c": True}},
        "user": "me",
        "stop": None,
        "note": "a=b",
    }


@pytest.mark.parametrize(
    ("patch", "text", "message"),
    [
        *((patch, "", "must hold a JSON object") for patch in (b"[]", b"{", b"\xff", b"3")),
        *((b"{}", text, "must be PATH=VALUE") for text in ("a", "=1", "a..b=1", ".=1")),
        *((b"{}", text, "not valid JSON") for text in ("a=NaN", "a.b=-Infinity", "a=[1e999]")),
        (b'{"a": NaN}', "", "not valid JSON numbers"),
    ],
    ids=str,
)
def test_invalid_edit_is_wrong_usage(patch: bytes, text: str, message: str) -> None:
    with pytest.raises(typer.BadParameter, match=message):
        merge_edits(patch, [text] if text else [])


def test_dead_letter_shows_its_fields() -> None:
    assert letter_row(LETTER)[:5] == ("dead_00_3", "a", "broken", "500", "2")
    shown = dict(letter_fields(LETTER))
    assert shown["index"] == "0"
    assert shown["attempt 1"].endswith("slow")
    assert "message" not in shown


def test_measures_have_percentiles_and_error_counts() -> None:
    latencies_s = array("d", [n / 1000 for n in range(1, 101)])
    errors = Counter({"timeout": 1, "503 no_capacity": 2})
    found = measures(LoadMeasurement(2.0, latencies_s, latencies_s, 400, errors), stream=True)
    assert found == {
        "seconds": 2.0,
        "calls": 100,
        "calls_per_s": 50.0,
        "latency_ms": {"p50": 50.0, "p95": 95.0, "p99": 99.0},
        "first_piece_ms": {"p50": 50.0, "p95": 95.0, "p99": 99.0},
        "pieces_per_s": 200.0,
        "errors": {"503 no_capacity": 2, "timeout": 1},
    }
    shown = dict(measure_rows(found))
    assert shown["calls/s"] == "50.0"
    assert shown["latency, ms, p99"] == "99.0"
    assert shown["errors, timeout"] == "1"
    without_calls = measures(LoadMeasurement(seconds=1.0), stream=False)
    assert (without_calls["calls"], without_calls["latency_ms"]) == (0, {})
    assert "first_piece_ms" not in without_calls


def test_background_job_omits_empty_fields() -> None:
    job = {
        "id": "job_1",
        "status": "completed",
        "endpoint": "/v1/chat/completions",
        "model": "m",
        "model_version": "m@1",
        "created_at": 0,
        "completed_at": 60,
        "cancelled_at": None,
        "response": {"status_code": 200, "body": {}},
        "usage": {"input_tokens": 3, "output_tokens": 4},
        "error": None,
    }
    shown = dict(job_fields(job))
    assert shown["answer"] == "HTTP 200"
    assert shown["tokens"] == "3 in, 4 out"
    assert shown["completed"] == "1970-01-01T00:01:00+00:00"
    assert shown.keys().isdisjoint({"cancelled", "error", "expires"})
    failed = {"id": "job_1", "error": {"code": "c", "message": "No."}}
    assert dict(job_fields(failed)) == {"id": "job_1", "error": "No. (c)"}


def test_state_has_the_reason_of_a_disabled_endpoint() -> None:
    assert state_text({"millrace": {"enabled": True, "disabled_reason": None}}) == "enabled"
    assert state_text({"millrace": {"enabled": False, "disabled_reason": "unreachable"}}) == (
        "disabled: unreachable"
    )


def test_last_try_is_a_status_or_an_error_code() -> None:
    silent = {"status_code": None, "error_code": "timed_out"}
    refused = {"status_code": 500, "error_code": "5xx"}

    assert last_try_text({"attempts": []}) == ""
    assert last_try_text({"attempts": [silent, refused]}) == "500"
    assert last_try_text({"attempts": [refused, silent]}) == "timed_out"


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


def test_progress_uses_the_millrace_field_and_else_the_request_counts() -> None:
    progress = progress_of(batch(millrace=OWN))
    assert progress == JobStatus(JobState.IN_PROGRESS, 10, 4, 1, 2, 3)
    assert progress.ended == 10
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
