"""Builds the reply, the outcome and the bill of an online call that ends."""

from typing import Final

import msgspec

from core.outcomes import Outcome
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import error_answer
from gpu_consumers.inflight.item_outcomes import final_outcome_of
from gpu_consumers.inflight.online_call import CallAbortReason, OnlineCall
from topics.records.records import ItemOutcome, ReplyEnd

FIRST_ERROR_STATUS = 400

_DEADLINE = error_answer(
    504,
    "The deadline of this request has passed.",
    type_="timeout_error",
    code="deadline_exceeded",
)
_OVERDUE = error_answer(
    504,
    "This request waited longer for its execution than its queue timeout allows.",
    type_="timeout_error",
    code="queue_timeout",
)
_DRAIN = error_answer(
    503,
    "The replica that executed this request was stopped. Send the request again.",
    type_="server_error",
    code="stream_interrupted",
)
_INTERRUPTED = error_answer(
    502,
    "The execution of this request was interrupted. Send the request again.",
    type_="server_error",
    code="stream_interrupted",
)
_CANCELLED = error_answer(409, "This request was cancelled.", code="cancelled")

_ERRORS: Final = {
    CallAbortReason.DEADLINE: _DEADLINE,
    CallAbortReason.OVERDUE: _OVERDUE,
    CallAbortReason.DRAIN: _DRAIN,
    CallAbortReason.POOL: _INTERRUPTED,
    CallAbortReason.PIECE_TOO_LARGE: _INTERRUPTED,
    CallAbortReason.SILENT: _INTERRUPTED,
    CallAbortReason.UNPERMITTED: _INTERRUPTED,
}
_CANCELLED_BY_CALLER: Final = frozenset({CallAbortReason.CALLER, CallAbortReason.CLOSED})


def error_of_abort(call: OnlineCall) -> EngineAnswer | None:
    """Return the error for the caller of an aborted call, None if no reply is due.

    Its token counts are those of the delivered part.
    """
    if call.abort_reason is None:
        return None
    error = _ERRORS.get(call.abort_reason)
    if call.abort_reason in _CANCELLED_BY_CALLER and call.is_durable:
        error = _CANCELLED
    if error is None or call.usage is None:
        return error
    return msgspec.structs.replace(call.usage, status_code=error.status_code, body=error.body)


def reply_end(call: OnlineCall, answer: EngineAnswer, body_key: str | None) -> ReplyEnd:
    """Return the end of the reply; `body_key` names the object that holds a large body."""
    return ReplyEnd(
        answer.status_code,
        answer.body if body_key is None else b"",
        answer.input_tokens,
        answer.output_tokens,
        answer.cached_tokens,
        answer.reasoning_tokens,
        call.waited_s,
        call.execution_s,
        body_key,
    )


def durable_outcome(call: OnlineCall, answer: EngineAnswer) -> ItemOutcome | None:
    """Return the outcome of a durable call; None if a close record is its outcome.

    The body may still be too large for a record. The body of a complete stream is the JSON array
    of its pieces.
    """
    if call.abort_reason is CallAbortReason.CLOSED:
        return None
    if call.abort_reason is CallAbortReason.CALLER:
        return ItemOutcome(
            call.item.index,
            call.item.custom_id,
            Outcome.CANCELLED,
            0,
            b"",
            error_code="cancelled",
            output_tokens=answer.output_tokens,
            attempt=call.item.attempt,
        )
    if answer.status_code < FIRST_ERROR_STATUS and call.pieces:
        answer = msgspec.structs.replace(answer, body=b"[%b]" % b",".join(call.pieces))
    outcome = final_outcome_of(call.item, answer)
    if call.abort_reason in (CallAbortReason.DEADLINE, CallAbortReason.OVERDUE):
        return _expired(outcome)
    return outcome


def billed_outcome(call: OnlineCall, answer: EngineAnswer | None) -> ItemOutcome | None:
    """Return what a connection-bound call costs, as an outcome without a body.

    The outcome belongs to no job: the results writer adds it to the ledger. An aborted call costs
    the part that was sent to its caller. None if nothing was executed.
    """
    if not call.has_started:
        return None
    billed = answer or call.usage or EngineAnswer(0, b"")
    return ItemOutcome(
        call.item.index,
        call.item.custom_id,
        _billed_as(call, billed),
        billed.status_code,
        b"",
        input_tokens=billed.input_tokens,
        output_tokens=billed.output_tokens,
        cached_tokens=billed.cached_tokens,
        reasoning_tokens=billed.reasoning_tokens,
        attempt=call.item.attempt,
    )


def _billed_as(call: OnlineCall, billed: EngineAnswer) -> Outcome:
    if call.abort_reason is CallAbortReason.DEADLINE:
        return Outcome.EXPIRED
    if call.abort_reason in (*_CANCELLED_BY_CALLER, CallAbortReason.SILENT):
        return Outcome.CANCELLED
    return Outcome.SUCCEEDED if billed.status_code < FIRST_ERROR_STATUS else Outcome.FAILED


def _expired(outcome: ItemOutcome) -> ItemOutcome:
    return ItemOutcome(
        outcome.index,
        outcome.custom_id,
        Outcome.EXPIRED,
        outcome.status_code,
        outcome.body,
        output_tokens=outcome.output_tokens,
        attempt=outcome.attempt,
    )
