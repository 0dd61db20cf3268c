"""Goal: what the installation owes its client and does not give is broken, and not just untried."""

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


def test_a_file_that_cannot_be_read_has_no_lines_and_a_reason(
    client: Callable[[Answer], Client],
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if "file-good" in str(request.url):
            return httpx.Response(200, content=b'{"custom_id": "item-0"}\n')
        return httpx.Response(404)

    files = JobFiles(client(answer), {"output_file_id": "file-good", "error_file_id": "file-gone"})
    assert files.custom_ids() == ["item-0"]
    (told,) = files.unreadable
    assert "file-gone" in told


def test_a_file_of_what_is_no_json_cannot_be_read(client: Callable[[Answer], Client]) -> None:
    files = JobFiles(
        client(lambda _: httpx.Response(200, content=b"nonsense\n")), {"output_file_id": "file-1"}
    )
    assert files.unreadable


def test_a_refused_cancel_is_told_with_its_moment(client: Callable[[Answer], Client]) -> None:
    began_s = time.time()
    refused = client(lambda _: httpx.Response(400)).request_cancel("batch_1", time.monotonic() + 5)
    assert refused.is_refused
    assert began_s <= refused.at_s <= time.time()
    taken = client(lambda _: httpx.Response(200)).request_cancel("batch_1", time.monotonic() + 5)
    assert not taken.is_refused


def test_a_refusal_for_good_is_no_fault_of_the_harness(client: Callable[[Answer], Client]) -> None:
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
def test_a_storm_knows_which_jobs_it_may_have_cancelled(
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
