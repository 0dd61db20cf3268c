"""Goal: reconciliation finds a failed item and an answer that belongs to another item."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from chaos.checkers.answers import (
    foreign_answers,
    input_bodies,
    is_echo_answer,
    is_simulated_answer,
)
from chaos.checkers.end_states import (
    ALL_SUCCEED,
    CANCELLED,
    MAY_BE_CANCELLED,
    MAY_EXPIRE,
    unexpected_ends,
)
from chaos.checkers.results import Tally, Usage
from chaos.clients.client import Client, input_lines
from chaos.clients.history import Recorder
from chaos.drills.context import MODEL
from chaos.installations.recording_upstream import recording_upstream
from chaos.observations.job_files import JobFiles
from chaos.verification import reconciliation
from chaos.verification.reconciliation import EndedJob, reconcile_jobs
from gpu_consumers.engines.simulated.generated_answers import chat_answer

ITEMS = 5
BODIES = input_bodies(input_lines(ITEMS, MODEL))
Line = dict[str, Any]


def succeeded(item: str, body: bytes) -> Line:
    answer = json.loads(chat_answer(body, b'"simulated/simulated"', 1).body)
    return {"custom_id": item, "response": {"status_code": 200, "body": answer}, "error": None}


def failed(item: str, code: str) -> Line:
    return {"custom_id": item, "response": None, "error": {"code": code, "message": "m"}}


def all_succeeded() -> list[Line]:
    return [succeeded(item, body) for item, body in BODIES.items()]


def test_an_undisturbed_job_must_complete_with_every_item() -> None:
    assert unexpected_ends("completed", {}, ALL_SUCCEED) == []
    assert unexpected_ends("completed", {"item-0": "item_timeout"}, ALL_SUCCEED) == [
        "item-0: item_timeout"
    ]
    assert unexpected_ends("cancelled", {}, ALL_SUCCEED) == ["the job is cancelled"]
    assert unexpected_ends("unknown", {}, MAY_BE_CANCELLED) == ["the job is unknown"]


def test_an_early_end_allows_only_its_own_error_code() -> None:
    stopped = {"item-0": "batch_cancelled"}
    assert unexpected_ends("cancelled", stopped, MAY_BE_CANCELLED) == []
    assert unexpected_ends("completed", stopped, MAY_BE_CANCELLED) == ["item-0: batch_cancelled"]
    assert unexpected_ends("cancelled", {"item-0": "item_timeout"}, MAY_BE_CANCELLED)
    assert unexpected_ends("completed", {}, MAY_BE_CANCELLED) == []
    assert unexpected_ends("completed", {}, CANCELLED)  # its cancellation was accepted
    assert unexpected_ends("expired", {"item-0": "batch_expired"}, MAY_EXPIRE) == []
    assert unexpected_ends("expired", stopped, MAY_EXPIRE)


def test_own_answers_of_the_engine_are_accepted() -> None:
    assert foreign_answers(BODIES, all_succeeded(), is_simulated_answer) == []


def test_answers_of_other_items_and_jobs_are_found() -> None:
    lines = all_succeeded()
    for one, other in ((0, 1), (1, 0)):
        lines[one]["response"] = succeeded("", BODIES[f"item-{other}"])["response"]
    assert foreign_answers(BODIES, lines, is_simulated_answer) == ["item-0", "item-1"]
    elsewhere = input_bodies(input_lines(1, MODEL, {0: "of another job"}))
    lines = [succeeded("item-0", elsewhere["item-0"])]
    assert foreign_answers(BODIES, lines, is_simulated_answer) == ["item-0"]
    assert foreign_answers(BODIES, [succeeded("item-9", b'{"messages":[]}')], is_simulated_answer)


@pytest.mark.parametrize(("name", "other"), [("prompt_tokens", 1), ("completion_tokens", 8)])
def test_token_counts_of_other_items_are_found(name: str, other: int) -> None:
    line = succeeded("item-2", BODIES["item-2"])
    line["response"]["body"]["usage"][name] = other
    assert foreign_answers(BODIES, [line], is_simulated_answer) == ["item-2"]


@pytest.mark.parametrize("answer", [None, {}, {"choices": [], "usage": {}}, "Simulated"])
def test_an_invalid_answer_belongs_to_no_item(answer: object) -> None:
    assert not is_simulated_answer(BODIES["item-0"], answer)
    assert not is_echo_answer(BODIES["item-0"], answer)


def echoed(text: str, given: int, granted: int) -> Line:
    return {
        "choices": [{"message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": given, "completion_tokens": granted},
    }


def test_an_echo_has_the_complete_text_and_its_tokens() -> None:
    body = input_bodies(input_lines(3, MODEL, {2: "cancel-7 1 2"}))["item-2"]
    assert is_echo_answer(body, echoed("cancel-7 1 2", 12, 3))
    assert not is_echo_answer(body, echoed("cancel-7 1 20", 13, 3))
    assert not is_echo_answer(body, echoed("cancel-7 1 2", 12, 4))


def test_the_recording_upstream_echoes_each_text() -> None:
    with recording_upstream() as upstream:
        answers = {
            item: httpx.post(f"{upstream.url}/chat/completions", content=body).json()
            for item, body in list(BODIES.items())[:2]
        }
    assert is_echo_answer(BODIES["item-0"], answers["item-0"])
    assert is_echo_answer(BODIES["item-1"], answers["item-1"])
    assert not is_echo_answer(BODIES["item-1"], answers["item-0"])


@pytest.fixture
def reconcile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[list[Line], list[Line]], list[str]]]:
    """Return the violated measures where counters and ledger agree with the files."""
    files: dict[str, list[Line]] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        lines = files[request.url.path.split("/")[3]]
        return httpx.Response(200, content=b"".join(json.dumps(x).encode() + b"\n" for x in lines))

    http = httpx.Client(transport=httpx.MockTransport(answer))
    with closing(Recorder(tmp_path / "h.jsonl")) as recorder:
        client = Client("c", ["http://host"], "key", recorder, http)
        engine = sa.create_mock_engine("postgresql://", lambda *_: None)

        def run(output: list[Line], errors: list[Line]) -> list[str]:
            files.update(output=output, errors=errors)
            job: dict[str, Any] = {"output_file_id": "output", "error_file_id": "errors"}
            found = JobFiles(client, job)
            usage, tally = found.usage(), found.tally()
            monkeypatch.setattr(reconciliation, "billed_usage", lambda *_: usage)
            monkeypatch.setattr(reconciliation, "counter_tally", lambda *_: tally)
            job |= {"id": "batch_1", "status": "completed", **shown(tally, usage)}
            measures = reconcile_jobs(engine, client, [EndedJob(job, ITEMS)])  # type: ignore[arg-type]
            assert all(measure.size == ITEMS for measure in measures)
            return [measure.what for measure in measures if measure.is_violation]

        yield run


def shown(tally: Tally, usage: Usage) -> Line:
    return {
        "request_counts": {
            "total": tally.total,
            "completed": tally.succeeded,
            "failed": tally.failed,
        },
        "millrace": {
            name: getattr(tally, name) for name in ("succeeded", "failed", "cancelled", "expired")
        },
        "usage": {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens},
    }


def test_consistent_jobs_have_no_violation(reconcile: Callable[..., list[str]]) -> None:
    assert reconcile(all_succeeded(), []) == []


def test_a_job_of_failures_is_a_violation_even_if_all_numbers_agree(
    reconcile: Callable[..., list[str]],
) -> None:
    assert reconcile([], [failed(item, "item_crashes_engine") for item in BODIES]) == [
        "jobs and items that ended otherwise than they had to"
    ]


def test_swapped_answers_are_a_violation_even_if_the_sum_agrees(
    reconcile: Callable[..., list[str]],
) -> None:
    lines = all_succeeded()
    lines[0]["response"], lines[1]["response"] = lines[1]["response"], lines[0]["response"]
    assert reconcile(lines, []) == ["items with an answer or tokens that are not their own"]
