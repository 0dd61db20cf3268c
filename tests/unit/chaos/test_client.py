"""Goal: clients record every response, and watchers stop polling terminal jobs."""

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from chaos.checkers.acceptance import acknowledged_ids
from chaos.clients.client import Client
from chaos.clients.history import Recorder
from chaos.clients.watchers import POLLS_AFTER_END, watching_jobs
from chaos.errors import DrillError
from tests.support.until import until

JOB = {"id": "batch_1", "status": "in_progress", "created_at": 1}


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    with closing(Recorder(tmp_path / "h.jsonl")) as found:
        yield found


def client_of(recorder: Recorder, *answers: httpx.Response) -> Client:
    """A client that receives these responses in order, and then the last one repeatedly."""
    remaining = list(answers)
    transport = httpx.MockTransport(
        lambda _: remaining.pop(0) if len(remaining) > 1 else remaining[0]
    )
    return Client("c", ["http://api"], "key", recorder, httpx.Client(transport=transport))


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"id": null}', b'"batch_1"'])
def test_a_success_without_an_id_is_in_the_history(recorder: Recorder, body: bytes) -> None:
    client = client_of(recorder, httpx.Response(200, content=body))
    with pytest.raises(DrillError, match="200 without an id"):
        client.create("k", "file_1", time.monotonic() + 5)
    assert acknowledged_ids(recorder.operations()) == {"k": "None"}  # which is no job: a violation


def test_a_response_is_recorded_without_its_content(recorder: Recorder) -> None:
    replay = httpx.Response(200, json=JOB, headers={"idempotent-replayed": "true"})
    client = client_of(recorder, httpx.Response(200, json=JOB), replay)
    for _ in range(2):
        client.create("k", "file_1", time.monotonic() + 5)
    first, again = [step.detail for step in recorder.operations() if step.phase == "ok"]
    assert first.pop("replayed") is not again.pop("replayed")
    assert first == again
    assert "in_progress" not in str(first)


def test_jobs_are_polled_once_even_after_the_deadline(recorder: Recorder) -> None:
    client = client_of(recorder, httpx.Response(200, json={**JOB, "status": "completed"}))
    assert client.await_terminal(["batch_1"], time.monotonic() - 1).keys() == {"batch_1"}


def test_watchers_stop_polling_terminal_jobs(recorder: Recorder) -> None:
    """Otherwise a running job of a long storm would be polled too rarely."""
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        job_id = request.url.path.rpartition("/")[2]
        seen.append(job_id)
        return httpx.Response(
            200, json={**JOB, "status": "failed" if job_id == "ended" else "in_progress"}
        )

    http = httpx.Client(transport=httpx.MockTransport(answer))
    with watching_jobs([Client("w", ["http://api"], "key", recorder, http)]) as watch:
        watch("ended")
        watch("running")
        until(lambda: seen.count("running") >= 2 * POLLS_AFTER_END)
    assert seen.count("ended") == POLLS_AFTER_END


def test_watchers_stop_when_a_drill_aborts(recorder: Recorder) -> None:
    client = client_of(recorder, httpx.Response(200, json=JOB))
    before = set(threading.enumerate())
    with contextlib.suppress(KeyError), watching_jobs([client]) as watch:
        watch("batch_1")
        assert set(threading.enumerate()) - before
        raise KeyError("status")
    assert set(threading.enumerate()) == before
