"""Goal: one table decides which failures are transient, whatever is in the body."""

import pytest

from core.outcomes import Outcome
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import error_answer, is_transient, item_timeout_answer
from gpu_consumers.inflight.item_outcomes import ANSWER_MISSING, INPUT_MISSING, outcome_of
from topics.records.records import Item

ITEM = Item(7, "id-7", b"{}", 1, 2, 700)


@pytest.mark.parametrize(
    ("answer", "may"),
    [
        (error_answer(400, "wrong"), False),
        (error_answer(404, "unknown"), False),
        (error_answer(408, "too slow"), True),
        (error_answer(409, "in conflict"), True),
        (error_answer(413, "too large"), False),
        (error_answer(422, "wrong"), False),
        (error_answer(425, "too early"), True),
        (error_answer(500, "broken"), True),
        (error_answer(501, "unknown"), False),
        (error_answer(502, "away", code="upstream_disconnected"), True),
        (error_answer(502, "odd", code="answer_not_http"), True),
        (error_answer(502, "odd", code="answer_not_json"), True),
        (error_answer(502, "large", code="answer_too_large"), False),
        (error_answer(502, "elsewhere", code="upstream_redirect"), False),
        (error_answer(520, "odd"), True),
        (EngineAnswer(500, b"<html>"), True),
        (EngineAnswer(500, b'{"error":"a string"}'), True),
        (EngineAnswer(500, b'{"error":{"code":500}}'), True),
        (EngineAnswer(500, b"\xff" * 9), True),
        (EngineAnswer(500, b"[" * 100_000), True),
        (ANSWER_MISSING, True),
        (INPUT_MISSING, False),
        (item_timeout_answer(600.0), True),
    ],
)
def test_transient_failures(answer: EngineAnswer, may: bool) -> None:
    assert is_transient(answer) is may
    outcome = outcome_of(ITEM, answer)
    assert (outcome.outcome, outcome.retryable) == (Outcome.FAILED, may)
    assert (outcome.index, outcome.attempt, outcome.offset) == (7, 2, 700)
    assert not outcome_of(ITEM, answer, is_final=True).retryable


def test_success_is_not_transient() -> None:
    outcome = outcome_of(ITEM, EngineAnswer(200, b"{}", 1, 2, 3, 4))
    assert (outcome.outcome, outcome.retryable, outcome.offset) == (Outcome.SUCCEEDED, False, 0)
    assert outcome == outcome_of(ITEM, EngineAnswer(200, b"{}", 1, 2, 3, 4), is_final=True)
