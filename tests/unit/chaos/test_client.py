"""Goal: clients record every response, and a request that is not served is a violation."""

import contextlib
import threading
import time
from typing import cast

import httpx
import pytest

from chaos.checkers.acceptance import acknowledged_ids
from chaos.checkers.end_states import ALL_SUCCEED, CANCELLED, MAY_BE_CANCELLED, EndStates
from chaos.clients.history import Recorder, read
from chaos.clients.observers import POLLS_AFTER_END, watching_jobs
from chaos.drills.context import DrillContext
from chaos.drills.storm import JobCreator
from chaos.errors import DrillError, NotServedError
from chaos.verification.acknowledged import compare_contents
from chaos.verification.reconciliation import JobFiles
from tests.support.until import until
from tests.unit.chaos.conftest import ClientOf

JOB = {"id": "batch_1", "status": "in_progress", "created_at": 1}


def test_a_history_is_read_as_it_was_written(recorder: Recorder) -> None:
    recorder.record("c", "create", "k", "invoke")
    recorder.record("c", "create", "k", "ok", id="batch_1")
    assert recorder.operations() == list(read(recorder.path))
    (_, last) = read(recorder.path)
    assert (last.client, last.phase, last.detail) == ("c", "ok", {"id": "batch_1"})


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"id": null}', b'"batch_1"'])
def test_a_success_without_an_id_is_in_the_history(
    recorder: Recorder, client_of: ClientOf, body: bytes
) -> None:
    client = client_of(lambda _: httpx.Response(200, content=body))
    with pytest.raises(DrillError, match="200 without an id"):
        client.create("k", "file_1", time.monotonic() + 5)
    assert acknowledged_ids(recorder.operations()) == {"k": "None"}  # which is no job: a violation


def test_a_response_is_recorded_without_its_content(
    recorder: Recorder, client_of: ClientOf
) -> None:
    heads = iter([{}, {"idempotent-replayed": "true"}])
    client = client_of(lambda _: httpx.Response(200, json=JOB, headers=next(heads)))
    for _ in range(2):
        client.create("k", "file_1", time.monotonic() + 5)
    first, again = [step.detail for step in recorder.operations() if step.phase == "ok"]
    assert first.pop("replayed") is not again.pop("replayed")
    assert first == again
    assert "in_progress" not in str(first)


def test_a_final_refusal_is_a_failure_of_the_installation(client_of: ClientOf) -> None:
    with pytest.raises(NotServedError):
        client_of(lambda _: httpx.Response(422)).upload("k", b"{}\n", time.monotonic() + 5)


@pytest.mark.parametrize(("status", "is_refused"), [(400, True), (200, False)])
def test_a_cancellation_has_its_time(client_of: ClientOf, status: int, is_refused: bool) -> None:
    began_s = time.time()
    found = client_of(lambda _: httpx.Response(status)).cancel("batch_1", time.monotonic() + 5)
    assert found.is_refused == is_refused
    assert began_s <= found.at_s <= time.time()


@pytest.mark.parametrize(
    ("status", "ends"), [(200, CANCELLED), (400, MAY_BE_CANCELLED), (None, MAY_BE_CANCELLED)]
)
def test_a_storm_records_which_jobs_may_be_cancelled(
    client_of: ClientOf, status: int | None, ends: EndStates
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if status is None:
            raise httpx.ReadError("lost", request=request)
        return httpx.Response(status)

    jobs = JobCreator(cast("DrillContext", None), 60)
    jobs.sizes.update(cancelled=1, other=2)
    until_s = time.monotonic() + (0.01 if status is None else 5)
    with contextlib.suppress(NotServedError):
        jobs.cancel(client_of(answer), "cancelled", until_s)
    found = jobs.ended({"cancelled": {"id": "cancelled"}, "other": {"id": "other"}})
    assert [(one.job["id"], one.items, one.ends) for one in found] == [
        ("cancelled", 1, ends),
        ("other", 2, ALL_SUCCEED),
    ]


def test_jobs_are_polled_once_even_after_the_deadline(client_of: ClientOf) -> None:
    client = client_of(lambda _: httpx.Response(200, json={**JOB, "status": "completed"}))
    assert client.await_terminal(["batch_1"], time.monotonic() - 1).keys() == {"batch_1"}


def test_watchers_stop_polling_terminal_jobs_and_end_when_a_drill_aborts(
    client_of: ClientOf,
) -> None:
    """Otherwise a running job of a long storm would be polled too rarely."""
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.path.rpartition("/")[2])
        status = "failed" if seen[-1] == "ended" else "in_progress"
        return httpx.Response(200, json={**JOB, "status": status})

    before = set(threading.enumerate())
    with contextlib.suppress(KeyError), watching_jobs([client_of(answer)]) as watch:
        watch("ended")
        watch("running")
        until(lambda: seen.count("running") >= 2 * POLLS_AFTER_END)
        assert set(threading.enumerate()) - before
        raise KeyError("status")
    assert seen.count("ended") == POLLS_AFTER_END
    assert set(threading.enumerate()) == before


def test_an_unreadable_file_has_no_lines_and_a_reason(client_of: ClientOf) -> None:
    contents = {
        "/v1/files/good/content": b'{"custom_id": "item-0"}\n',
        "/v1/files/nonsense/content": b"nonsense\n",
    }

    def answer(request: httpx.Request) -> httpx.Response:
        content = contents.get(request.url.path)
        return httpx.Response(404 if content is None else 200, content=content)

    client = client_of(answer)
    for name in ("gone", "nonsense"):
        files = JobFiles(client, {"output_file_id": "good", "error_file_id": name})
        assert files.custom_ids() == ["item-0"]
        (reason,) = files.unreadable
        assert name in reason


def test_acknowledged_files_are_compared_to_the_byte() -> None:
    found = {"file-1": b"{}\n", "file-2": None, "file-3": b"{}"}
    measure = compare_contents("P12", found, dict.fromkeys(found, b"{}\n"))
    assert (measure.value, measure.size) == (2, 3)
    assert compare_contents("P12", {"file-1": b"{}\n"}, {"file-1": b"{}\n"}).passed
