"""Goal: an accepted call that is lost, swapped or billed wrongly is found."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from chaos.checkers.results import Usage
from chaos.verification import acknowledged
from chaos.verification.acknowledged import chat_body, check_calls
from gpu_consumers.engines.simulated.generated_answers import chat_answer
from tests.unit.chaos.conftest import ClientOf

BODY, OTHER = chat_body("call 1", 2), chat_body("call 2", 3)
Check = Callable[..., list[str]]


def job(body: bytes, **changed: object) -> dict[str, Any]:
    answer = chat_answer(body, b'"simulated/simulated"', 1)
    usage = {"input_tokens": answer.input_tokens, "output_tokens": answer.output_tokens}
    response = {"status_code": 200, "body": json.loads(answer.body)}
    return {"status": "completed", "response": response, "usage": usage, **changed}


@pytest.fixture
def check(client_of: ClientOf, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Return the violated promises of one accepted call, by its job object and its ledger."""
    engine = sa.create_mock_engine("postgresql://", lambda *_: None)

    def run(shown: dict[str, Any] | None, times_billed: int = 1) -> list[str]:
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


def test_a_call_answered_once_has_no_violation(check: Check) -> None:
    assert check(job(BODY)) == []


@pytest.mark.parametrize(
    "shown",
    [
        None,
        job(BODY, status="in_progress", response=None),
        job(BODY, status="expired", response=None, error={"code": "deadline_exceeded"}),
        job(BODY, response={"status_code": 500, "body": {}}),
    ],
)
def test_a_call_without_a_successful_answer_is_a_violation(
    check: Check, shown: dict[str, Any] | None
) -> None:
    assert check(shown) == ["P1"]


def test_the_answer_of_another_call_is_found(check: Check) -> None:
    assert check(job(OTHER)) == ["P2"]


@pytest.mark.parametrize("times_billed", [0, 2])
def test_a_call_is_billed_once(check: Check, times_billed: int) -> None:
    assert check(job(BODY), times_billed) == ["P4"]
