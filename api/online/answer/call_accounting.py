"""Accounting at the end of a call: rate limits, execution times, metrics."""

from typing import Final

from api.online import metrics
from api.online.await_reply.open_call import OpenCall
from api.online.call_errors import DEADLINE, JOB_CANCELLED, QUEUE_TIMEOUT
from api.online.calls import AdmittedCall
from api.online.online_runtime import OnlineRuntime

_ENDS_JOB: Final = frozenset({DEADLINE, JOB_CANCELLED, QUEUE_TIMEOUT})
"""Failures that end a durable call, too."""


def close_call(online: OnlineRuntime, admitted: AdmittedCall, call: OpenCall) -> None:
    """Remove an open call, abort its execution if that may still run, and settle its charge."""
    end = call.end
    online.calls.remove(call)
    if end is None and not call.is_durable:
        online.heartbeat.abort_call(call.job.job_id)
    used = used_tokens(call, admitted.prompt_tokens)
    if used is None:
        admitted.charge.keep_estimate()
    else:
        admitted.charge.settle(used, now_s=online.clock.monotonic_s())
    if end is not None and end.status_code < 400:
        online.execution.add(call.job.pool, end.execution_s)
    metrics.ENDED.labels(call.job.endpoint, _end_label(call)).inc()


def used_tokens(call: OpenCall, prompt_tokens: int) -> int | None:
    """Return the tokens that a closed call is charged; None when it continues elsewhere.

    A call without an end is charged like on the ledger: a stream for its prompt and the pieces
    that arrived, any other call nothing.
    """
    if call.end is not None:
        return call.end.input_tokens + call.end.output_tokens
    has_job_ended = call.failure is not None and call.failure.code in _ENDS_JOB
    if call.is_durable and not has_job_ended:
        return None
    return prompt_tokens + call.piece_count if call.piece_count else 0


def _end_label(call: OpenCall) -> str:
    if call.is_disconnected:
        return "left"
    if call.failure is not None:
        return call.failure.code or "error"
    if call.end is None:
        return "accepted"
    return "answered" if call.end.status_code < 400 else "error"
