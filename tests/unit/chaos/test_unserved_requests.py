"""Goal: a request that the installation fails to serve is a violation, not an untested promise."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import httpx
import pytest

from chaos.checkers.end_states import ALL_SUCCEED, CANCELLED, MAY_BE_CANCELLED, EndStates
from chaos.clients.client import Client
from chaos.clients.history import Recorder
from chaos.drills.context import DrillContext
from chaos.drills.storm import JobCreator
from chaos.errors import NotServedError
from chaos.observations.job_files import JobFiles
from chaos.verification.acknowledged import compare_contents

Answer = Callable[[httpx.Request], httpx.Response]


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answer], Client]]:
    monkeypatch.setattr("chaos.clients.client.PAUSE_S", 0.0)
    recorder = Recorder(tmp_path / "h.jsonl")

    def made(answer: Answer) -> Client:
        http = httpx.Client(transport=httpx.MockTransport(answer))
        return Client("c", ["http://host"], "key", recorder, http)

    yield made
    recorder.close()


def test_an_unreadable_file_has_no_lines_and_a_reason(
    client: Callable[[Answer], Client],
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if "file-good" in str(request.url):
            return httpx.Response(200, content=b'{"custom_id": "item-0"}\n')
        return httpx.Response(404)

    files = JobFiles(client(answer), {"output_file_id": "file-good", "error_file_id": "file-gone"})
    assert files.custom_ids() == ["item-0"]
    (reason,) = files.unreadable
    assert "file-gone" in reason


def test_a_file_without_json_is_unreadable(client: Callable[[Answer], Client]) -> None:
    files = JobFiles(
        client(lambda _: httpx.Response(200, content=b"nonsense\n")), {"output_file_id": "file-1"}
    )
    assert files.unreadable


def test_a_refused_cancellation_has_its_time(client: Callable[[Answer], Client]) -> None:
    began_s = time.time()
    refused = client(lambda _: httpx.Response(400)).cancel("batch_1", time.monotonic() + 5)
    assert refused.is_refused
    assert began_s <= refused.at_s <= time.time()
    accepted = client(lambda _: httpx.Response(200)).cancel("batch_1", time.monotonic() + 5)
    assert not accepted.is_refused


def test_a_final_refusal_is_a_failure_of_the_installation(
    client: Callable[[Answer], Client],
) -> None:
    with pytest.raises(NotServedError):
        client(lambda _: httpx.Response(422)).upload("k", b"{}\n", time.monotonic() + 5)


def test_acknowledged_files_are_compared_to_the_byte() -> None:
    found = {"file-1": b"{}\n", "file-2": None, "file-3": b"{}"}
    measure = compare_contents("P12", found, dict.fromkeys(found, b"{}\n"))
    assert (measure.value, measure.size) == (2, 3)
    assert compare_contents("P12", {"file-1": b"{}\n"}, {"file-1": b"{}\n"}).passed


@pytest.mark.parametrize(
    ("status", "ends"), [(200, CANCELLED), (400, MAY_BE_CANCELLED), (None, MAY_BE_CANCELLED)]
)
def test_a_storm_records_which_jobs_may_be_cancelled(
    client: Callable[[Answer], Client], status: int | None, ends: EndStates
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if status is None:
            raise httpx.ReadError("lost", request=request)
        return httpx.Response(status)

    jobs = JobCreator(cast("DrillContext", None), 60)
    jobs.sizes.update(cancelled=1, other=2)
    until_s = time.monotonic() + (0.01 if status is None else 5)
    with contextlib.suppress(NotServedError):
        jobs.cancel(client(answer), "cancelled", until_s)
    found = jobs.ended({"cancelled": {"id": "cancelled"}, "other": {"id": "other"}})
    assert [(one.job["id"], one.items, one.ends) for one in found] == [
        ("cancelled", 1, ends),
        ("other", 2, ALL_SUCCEED),
    ]
