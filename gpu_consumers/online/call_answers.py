"""What is said at the end of an online call: to its caller, and to the judge of a durable one."""

import msgspec

from core.outcomes import Outcome
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import error_answer
from gpu_consumers.inflight.online_call import Cut, OnlineCall
from gpu_consumers.inflight.outcomes import last_outcome_of
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
    "This request waited longer than it may for its execution.",
    type_="timeout_error",
    code="queue_timeout",
)
_LEAVING = error_answer(
    503,
    "The replica that ran this request was stopped.",
    type_="server_error",
    code="stream_interrupted",
)
_INTERRUPTED = error_answer(
    502,
    "The execution of this request was interrupted.",
    type_="server_error",
    code="stream_interrupted",
)
_CANCELLED = error_answer(409, "This request was cancelled.", code="cancelled")


def answer_of_cut(call: OnlineCall) -> EngineAnswer | None:
    """Return what the caller of a call that was cut hears; None where nobody is to be told.

    Its counts are of the delivered part.
    """
    if call.cut is Cut.DEADLINE:
        said = _DEADLINE
    elif call.cut is Cut.OVERDUE:
        said = _OVERDUE
    elif call.cut is Cut.DRAIN:
        said = _LEAVING
    elif call.cut in (Cut.POOL, Cut.PIECE_TOO_LARGE, Cut.SILENT, Cut.UNPERMITTED):
        said = _INTERRUPTED
    elif call.cut in (Cut.CALLER, Cut.CLOSED) and call.is_durable:
        said = _CANCELLED
    else:
        return None
    return _with_counts_of(call.spent, said)


def _with_counts_of(spent: EngineAnswer | None, said: EngineAnswer) -> EngineAnswer:
    if spent is None:
        return said
    return msgspec.structs.replace(spent, status_code=said.status_code, body=said.body)


def reply_end(call: OnlineCall, answer: EngineAnswer, body_key: str | None) -> ReplyEnd:
    """Return the last part of the reply; `body_key` names where a large body is."""
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
    """Return how a durable request ended, its body still whole; None where a close record says it.

    The body of a stream that ended well is the JSON array of its pieces.
    """
    if call.cut is Cut.CLOSED:
        return None
    if call.cut is Cut.CALLER:
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
    outcome = last_outcome_of(call.item, _whole(call, answer))
    if call.cut in (Cut.DEADLINE, Cut.OVERDUE):
        return _with_outcome(outcome, Outcome.EXPIRED)
    return outcome


def bill_of_call(call: OnlineCall, answer: EngineAnswer | None) -> ItemOutcome | None:
    """Return what a connection-bound call that ends here costs; None where nothing was executed.

    An outcome without a body, which is of no job: the writer puts it on the ledger. Of a call that
    was cut it counts what its caller was sent.
    """
    if not call.has_begun:
        return None
    said = answer or call.spent or EngineAnswer(0, b"")
    return ItemOutcome(
        call.item.index,
        call.item.custom_id,
        _outcome_of_bill(call, said),
        said.status_code,
        b"",
        input_tokens=said.input_tokens,
        output_tokens=said.output_tokens,
        cached_tokens=said.cached_tokens,
        reasoning_tokens=said.reasoning_tokens,
        attempt=call.item.attempt,
    )


def _outcome_of_bill(call: OnlineCall, said: EngineAnswer) -> Outcome:
    if call.cut is Cut.DEADLINE:
        return Outcome.EXPIRED
    if call.cut in (Cut.CALLER, Cut.CLOSED, Cut.SILENT):
        return Outcome.CANCELLED
    return Outcome.SUCCEEDED if said.status_code < FIRST_ERROR_STATUS else Outcome.FAILED


def _whole(call: OnlineCall, answer: EngineAnswer) -> EngineAnswer:
    if answer.status_code >= FIRST_ERROR_STATUS or not call.kept:
        return answer
    return EngineAnswer(
        answer.status_code,
        b"[%b]" % b",".join(call.kept),
        answer.input_tokens,
        answer.output_tokens,
        answer.cached_tokens,
        answer.reasoning_tokens,
    )


def _with_outcome(ended: ItemOutcome, outcome: Outcome) -> ItemOutcome:
    return ItemOutcome(
        ended.index,
        ended.custom_id,
        outcome,
        ended.status_code,
        ended.body,
        output_tokens=ended.output_tokens,
        attempt=ended.attempt,
    )
