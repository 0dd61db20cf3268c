"""Goal: clients write down what they hear, however odd it is, and look at what can still change."""

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
from chaos.clients.watchers import POLLS_AFTER_END, Watchers
from chaos.errors import DrillError

JOB = {"id": "batch_1", "status": "in_progress", "created_at": 1}


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    with closing(Recorder(tmp_path / "h.jsonl")) as found:
        yield found


def client_of(recorder: Recorder, *answers: httpx.Response) -> Client:
    """A client that is given one answer after the other, then the last for ever."""
    left = list(answers)
    transport = httpx.MockTransport(lambda _: left.pop(0) if len(left) > 1 else left[0])
    return Client("c", ["http://api"], "key", recorder, httpx.Client(transport=transport))


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"id": null}', b'"batch_1"'])
def test_a_success_that_names_nothing_is_in_the_history(recorder: Recorder, body: bytes) -> None:
    client = client_of(recorder, httpx.Response(200, content=body))
    with pytest.raises(DrillError, match="200 without an id"):
        client.create("k", "file_1", time.monotonic() + 5)
    assert acknowledged_ids(recorder.operations()) == {
        "k": "None"
    }  # which is no job: a broken promise


def test_an_answer_is_told_without_what_it_holds(recorder: Recorder) -> None:
    replay = httpx.Response(200, json=JOB, headers={"idempotent-replayed": "true"})
    client = client_of(recorder, httpx.Response(200, json=JOB), replay)
    for _ in range(2):
        client.create("k", "file_1", time.monotonic() + 5)
    first, again = [step.detail for step in recorder.operations() if step.phase == "ok"]
    assert first.pop("replayed") is not again.pop("replayed")
    assert first == again
    assert "in_progress" not in str(first)


def test_jobs_are_looked_at_once_even_when_time_is_up(recorder: Recorder) -> None:
    client = client_of(recorder, httpx.Response(200, json={**JOB, "status": "completed"}))
    assert client.await_terminal(["batch_1"], time.monotonic() - 1).keys() == {"batch_1"}


def test_watchers_leave_what_has_ended(recorder: Recorder) -> None:
    """Else a job of a long storm is looked at once in seconds."""
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        job_id = request.url.path.rpartition("/")[2]
        seen.append(job_id)
        return httpx.Response(
            200, json={**JOB, "status": "failed" if job_id == "ended" else "in_progress"}
        )

    http = httpx.Client(transport=httpx.MockTransport(answer))
    watchers = Watchers([Client("w", ["http://api"], "key", recorder, http)])
    watchers.add("ended")
    watchers.add("running")
    watchers.start()
    deadline_s = time.monotonic() + 10
    while seen.count("running") < 2 * POLLS_AFTER_END:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    watchers.stop()
    assert seen.count("ended") == POLLS_AFTER_END


def test_nobody_looks_on_when_a_drill_breaks_off(recorder: Recorder) -> None:
    watchers = Watchers([client_of(recorder, httpx.Response(200, json=JOB))])
    watchers.add("batch_1")
    before = set(threading.enumerate())

    def drill() -> None:
        with watchers:
            assert set(threading.enumerate()) - before
            raise KeyError("status")

    with pytest.raises(KeyError):
        drill()
    assert set(threading.enumerate()) == before
