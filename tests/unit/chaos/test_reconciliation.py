"""Goal: a failed item, a lost call, a wrong bill and an answer of another item are found."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from chaos.checkers.end_states import (
    ALL_SUCCEED,
    CANCELLED,
    MAY_BE_CANCELLED,
    MAY_EXPIRE,
    EndStates,
    unexpected_ends,
)
from chaos.checkers.results import (
    Tally,
    Usage,
    foreign_answers,
    input_bodies,
    is_echo_answer,
    is_simulated_answer,
)
from chaos.clients.client import input_lines
from chaos.drills.context import MODEL
from chaos.installations.recording_upstream import recording_upstream
from chaos.verification import acknowledged, reconciliation
from chaos.verification.acknowledged import chat_body, check_calls
from chaos.verification.reconciliation import EndedJob, JobFiles, reconcile_jobs
from gpu_consumers.engines.simulated.generated_answers import chat_answer
from gpu_consumers.engines.simulated.shown_model import ShownModel
from tests.unit.chaos.conftest import ClientOf

ITEMS = 5
BODIES = input_bodies(input_lines(ITEMS, MODEL))
Line = dict[str, Any]
Reconcile = Callable[[list[Line], list[Line]], list[str]]


def succeeded(item: str, body: bytes) -> Line:
    answer = json.loads(chat_answer(body, ShownModel("simulated"), 1).body)
    return {"custom_id": item, "response": {"status_code": 200, "body": answer}, "error": None}


def failed(item: str, code: str) -> Line:
    return {"custom_id": item, "response": None, "error": {"code": code, "message": "m"}}


def all_succeeded() -> list[Line]:
    return [succeeded(item, body) for item, body in BODIES.items()]


@pytest.mark.parametrize(
    ("status", "code", "ends", "wrong"),
    [
        ("completed", None, ALL_SUCCEED, []),
        ("completed", "item_timeout", ALL_SUCCEED, ["item-0: item_timeout"]),
        ("cancelled", None, ALL_SUCCEED, ["the job is cancelled"]),
        ("unknown", None, MAY_BE_CANCELLED, ["the job is unknown"]),
        ("cancelled", "batch_cancelled", MAY_BE_CANCELLED, []),
        ("completed", "batch_cancelled", MAY_BE_CANCELLED, ["item-0: batch_cancelled"]),
        ("cancelled", "item_timeout", MAY_BE_CANCELLED, ["item-0: item_timeout"]),
        ("completed", None, MAY_BE_CANCELLED, []),
        ("completed", None, CANCELLED, ["the job is completed"]),  # its cancel was accepted
        ("expired", "batch_expired", MAY_EXPIRE, []),
        ("expired", "batch_cancelled", MAY_EXPIRE, ["item-0: batch_cancelled"]),
    ],
)
def test_a_job_ends_as_it_may_with_the_code_of_that_end(
    status: str, code: str | None, ends: EndStates, wrong: list[str]
) -> None:
    assert unexpected_ends(status, {"item-0": code} if code else {}, ends) == wrong


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
def reconcile(client_of: ClientOf, monkeypatch: pytest.MonkeyPatch) -> Reconcile:
    """Return the violated measures where counters and ledger agree with the files."""
    files: dict[str, list[Line]] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        lines = files[request.url.path.split("/")[3]]
        return httpx.Response(200, content=b"".join(json.dumps(x).encode() + b"\n" for x in lines))

    client = client_of(answer)
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

    return run


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


def test_failures_and_swapped_answers_are_violations_even_if_all_numbers_agree(
    reconcile: Reconcile,
) -> None:
    lines = all_succeeded()
    assert reconcile(lines, []) == []
    assert reconcile([], [failed(item, "item_crashes_engine") for item in BODIES]) == [
        "jobs and items that ended otherwise than they had to"
    ]
    lines[0]["response"], lines[1]["response"] = lines[1]["response"], lines[0]["response"]
    assert reconcile(lines, []) == ["items with an answer or tokens that are not their own"]


BODY, OTHER = chat_body("call 1", 2), chat_body("call 2", 3)
Check = Callable[[dict[str, Any] | None, int], list[str]]


def job(body: bytes, **changed: object) -> dict[str, Any]:
    answer = chat_answer(body, ShownModel("simulated"), 1)
    usage = {"input_tokens": answer.input_tokens, "output_tokens": answer.output_tokens}
    response = {"status_code": 200, "body": json.loads(answer.body)}
    return {"status": "completed", "response": response, "usage": usage, **changed}


@pytest.fixture
def check(client_of: ClientOf, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Return the violated promises of one accepted call, by its job object and its ledger."""
    engine = sa.create_mock_engine("postgresql://", lambda *_: None)

    def run(shown: dict[str, Any] | None, times_billed: int) -> list[str]:
        answer = httpx.Response(404) if shown is None else httpx.Response(200, json=shown)
        usage = (shown or {}).get("usage", {})
        billed = {name: times_billed * count for name, count in usage.items()}
        billed_usage = Usage(items=times_billed, **billed)
        monkeypatch.setattr(acknowledged, "billed_usage", lambda *_: billed_usage)
        client = client_of(lambda _: answer)
        found = check_calls(engine, client, "P1", {"job_1": BODY}, 0.0)  # type: ignore[arg-type]
        assert all(measure.size == 1 for measure in found)
        return [measure.promise for measure in found if measure.is_violation]

    return run


@pytest.mark.parametrize(
    ("shown", "times_billed", "violated"),
    [
        (job(BODY), 1, []),
        (None, 1, ["P1"]),
        (job(BODY, status="in_progress", response=None), 1, ["P1"]),
        (job(BODY, status="expired", response=None, error={"code": "late"}), 1, ["P1"]),
        (job(BODY, response={"status_code": 500, "body": {}}), 1, ["P1"]),
        (job(OTHER), 1, ["P2"]),
        (job(BODY), 0, ["P4"]),
        (job(BODY), 2, ["P4"]),
    ],
)
def test_a_call_is_answered_successfully_with_its_own_answer_and_billed_once(
    check: Check, shown: dict[str, Any] | None, times_billed: int, violated: list[str]
) -> None:
    assert check(shown, times_billed) == violated
