"""Goal: an item that failed, or carries an answer that is not its own, is found in the books."""

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


def test_whoever_does_not_stop_a_job_wants_every_item() -> None:
    assert unexpected_ends("completed", {}, ALL_SUCCEED) == []
    assert unexpected_ends("completed", {"item-0": "item_timeout"}, ALL_SUCCEED) == [
        "item-0: item_timeout"
    ]
    assert unexpected_ends("cancelled", {}, ALL_SUCCEED) == ["the job is cancelled"]
    assert unexpected_ends("unknown", {}, MAY_BE_CANCELLED) == ["the job is unknown"]


def test_an_early_end_explains_its_own_code_alone() -> None:
    stopped = {"item-0": "batch_cancelled"}
    assert unexpected_ends("cancelled", stopped, MAY_BE_CANCELLED) == []
    assert unexpected_ends("completed", stopped, MAY_BE_CANCELLED) == ["item-0: batch_cancelled"]
    assert unexpected_ends("cancelled", {"item-0": "item_timeout"}, MAY_BE_CANCELLED)
    assert unexpected_ends("completed", {}, MAY_BE_CANCELLED) == []
    assert unexpected_ends("completed", {}, CANCELLED)  # its cancel was accepted
    assert unexpected_ends("expired", {"item-0": "batch_expired"}, MAY_EXPIRE) == []
    assert unexpected_ends("expired", stopped, MAY_EXPIRE)


def test_the_engines_answer_is_its_items_own() -> None:
    assert foreign_answers(BODIES, all_succeeded(), is_simulated_answer) == []


def test_answers_of_neighbours_and_of_other_jobs_are_found() -> None:
    lines = all_succeeded()
    for one, other in ((0, 1), (1, 0)):
        lines[one]["response"] = succeeded("", BODIES[f"item-{other}"])["response"]
    assert foreign_answers(BODIES, lines, is_simulated_answer) == ["item-0", "item-1"]
    elsewhere = input_bodies(input_lines(1, MODEL, {0: "of another job"}))
    lines = [succeeded("item-0", elsewhere["item-0"])]
    assert foreign_answers(BODIES, lines, is_simulated_answer) == ["item-0"]
    assert foreign_answers(BODIES, [succeeded("item-9", b'{"messages":[]}')], is_simulated_answer)


@pytest.mark.parametrize(("name", "other"), [("prompt_tokens", 1), ("completion_tokens", 8)])
def test_tokens_of_others_are_found(name: str, other: int) -> None:
    line = succeeded("item-2", BODIES["item-2"])
    line["response"]["body"]["usage"][name] = other
    assert foreign_answers(BODIES, [line], is_simulated_answer) == ["item-2"]


@pytest.mark.parametrize("answer", [None, {}, {"choices": [], "usage": {}}, "Simulated"])
def test_what_is_no_answer_is_nobodys(answer: object) -> None:
    assert not is_simulated_answer(BODIES["item-0"], answer)
    assert not is_echo_answer(BODIES["item-0"], answer)


def echoed(text: str, given: int, granted: int) -> Line:
    return {
        "choices": [{"message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": given, "completion_tokens": granted},
    }


def test_an_echo_is_the_whole_text_and_its_tokens() -> None:
    body = input_bodies(input_lines(3, MODEL, {2: "cancel-7 1 2"}))["item-2"]
    assert is_echo_answer(body, echoed("cancel-7 1 2", 12, 3))
    assert not is_echo_answer(body, echoed("cancel-7 1 20", 13, 3))
    assert not is_echo_answer(body, echoed("cancel-7 1 2", 12, 4))


def test_the_upstream_of_the_drills_says_each_text_again() -> None:
    with recording_upstream() as upstream:
        answers = {
            item: httpx.post(f"{upstream.url}/chat/completions", content=body).json()
            for item, body in list(BODIES.items())[:2]
        }
    assert is_echo_answer(BODIES["item-0"], answers["item-0"])
    assert is_echo_answer(BODIES["item-1"], answers["item-1"])
    assert not is_echo_answer(BODIES["item-1"], answers["item-0"])


@pytest.fixture
def judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[list[Line], list[Line]], list[str]]]:
    """Return what of the books breaks, where counters and ledger agree with the files."""
    files: dict[str, list[Line]] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        lines = files[request.url.path.split("/")[3]]
        return httpx.Response(200, content=b"".join(json.dumps(x).encode() + b"\n" for x in lines))

    http = httpx.Client(transport=httpx.MockTransport(answer))
    with closing(Recorder(tmp_path / "h.jsonl")) as recorder:
        client = Client("c", ["http://host"], "key", recorder, http)
        engine = sa.create_mock_engine("postgresql://", lambda *_: None)

        def judge(output: list[Line], errors: list[Line]) -> list[str]:
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

        yield judge


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


def test_sound_books_are_sound(judged: Callable[..., list[str]]) -> None:
    assert judged(all_succeeded(), []) == []


def test_a_job_of_failures_is_broken_though_all_numbers_agree(
    judged: Callable[..., list[str]],
) -> None:
    assert judged([], [failed(item, "item_crashes_engine") for item in BODIES]) == [
        "jobs and items that ended otherwise than they had to"
    ]


def test_answers_that_changed_places_are_broken_though_the_sum_agrees(
    judged: Callable[..., list[str]],
) -> None:
    lines = all_succeeded()
    lines[0]["response"], lines[1]["response"] = lines[1]["response"], lines[0]["response"]
    assert judged(lines, []) == ["items with an answer or tokens that are not their own"]
