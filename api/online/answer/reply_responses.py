"""Responses to a call that does not stream, and accounting at the end of every call."""

import asyncio
from http import HTTPStatus
from typing import Final

from api.http.errors import ApiError
from api.online import metrics
from api.online.admit.token_charges import Charge, TokenCharges
from api.online.await_reply.open_calls import OpenCall
from api.online.call_errors import (
    DEADLINE,
    JOB_CANCELLED,
    LOCAL_FAILURES,
    QUEUE_TIMEOUT,
    deadline_exceeded,
    foreign_object,
    is_cancelled_reply,
    job_cancelled,
    shutting_down,
    stream_interrupted,
    without_retry,
)
from api.online.calls import AdmittedCall, call_deadline
from api.online.exchange import CompleteResponse, error_as_response
from api.online.online_runtime import OnlineRuntime
from api.online.send.call_keys import decrypt_body
from storage.crypto.body_ciphers import BodyUnreadableError
from topics.records.object_keys import ForeignObjectError, require_own_answer
from topics.records.records import ReplyEnd

RETRY_WITHIN_S: Final = 5.0
"""A client that may retry has done so by then, and the row of the first call is written."""


class ReplyResponses:
    """Creates the response to one call that was sent."""

    def __init__(self, online: OnlineRuntime, admitted: AdmittedCall, call: OpenCall) -> None:
        self._online, self._admitted, self._call = online, admitted, call
        self._wait_s = admitted.prepared.wait_s

    async def create(self) -> CompleteResponse:
        """Return the response. Raises ApiError; see `fallback`."""
        online, call, headers = self._online, self._call, self._admitted.headers
        is_local = call.failure is not None and call.failure.code in LOCAL_FAILURES
        if self._wait_s is not None and is_local:
            call.failure = None  # the committed call continues elsewhere
        if call.failure is not None:
            if call.is_durable and call.failure.code == QUEUE_TIMEOUT:
                await online.durable.expire(self._admitted.planned)
            return error_as_response(call.failure, headers)
        if call.end is None:
            return self._accepted()
        if call.is_durable and is_cancelled_reply(call.end):
            is_expired = not self._left_s()  # the job was closed because it expired
            error = deadline_exceeded() if is_expired else job_cancelled()
            return error_as_response(error, headers)
        try:
            body = await self.fetch_body(call, call.end)
        except asyncio.CancelledError:
            return self.fallback(shutting_down())
        except ApiError as failure:
            return self.fallback(failure)
        return self._from_reply(call.end, body)

    def fallback(self, error: ApiError) -> CompleteResponse:
        """Return the 202 in place of a reply that exists but cannot be sent.

        Raises `error` when the client does not accept a 202. The error advises against a retry,
        which would be charged again, unless the retry would be answered from the idempotency key:
        the reply is good and its key is still held when the retry arrives.
        """
        if self._wait_s is not None:
            return self._accepted()
        end = self._call.end
        is_good = end is not None and end.status_code < HTTPStatus.BAD_REQUEST
        is_key_held = self._admitted.prepared.claim is not None and self._left_s() >= RETRY_WITHIN_S
        raise error if is_good and is_key_held else without_retry(error)

    async def fetch_body(self, call: OpenCall, end: ReplyEnd) -> bytes:
        """Return the body of a reply, from the object store when it does not fit a record.

        Raises ApiError: 502 or 503 when the body is not available or of another call, 504 after
        the deadline.
        """
        if end.body_key is None:
            return end.body
        online = self._online
        try:
            require_own_answer(call.job.job_id, end.body_key)
        except ForeignObjectError:
            raise foreign_object() from None
        async with call_deadline(self._admitted.planned, online.clock, wait_s=self._wait_s):
            body = await online.bodies.fetch(end.body_key)
        online.bodies.delete_later(end.body_key)  # the row of a durable call has its own copy
        try:
            return body if call.cipher is None else decrypt_body(call.job, body, call.cipher)
        except BodyUnreadableError:
            raise stream_interrupted() from None

    def _from_reply(self, end: ReplyEnd, body: bytes) -> CompleteResponse:
        online, timings = self._online, self._admitted.timings
        timings.replied_s = self._call.replied_s
        timing = timings.at_end(end, now_s=online.clock.monotonic_s())
        headers = [*self._admitted.headers, (b"server-timing", timing)]
        response = CompleteResponse(
            end.status_code, body, headers, end.input_tokens, end.output_tokens
        )
        if self._admitted.cache_key is not None:
            online.cache.store(self._admitted.cache_key, response)
        return response

    def _accepted(self) -> CompleteResponse:
        """Return the 202 of a committed call."""
        accepted = self._online.durable.accept(
            self._admitted.planned, self._admitted.prepared.claim
        )
        headers = [*self._admitted.headers, *accepted.headers]
        return CompleteResponse(accepted.status, accepted.body, headers)

    def _left_s(self) -> float:
        planned = self._admitted.planned
        return planned.left_s(planned.timeout_s, now_s=self._online.clock.monotonic_s())


_ENDS_JOB: Final = frozenset({DEADLINE, JOB_CANCELLED, QUEUE_TIMEOUT})
"""Failures that end a durable call, too."""


def close_call(online: OnlineRuntime, admitted: AdmittedCall, call: OpenCall) -> None:
    """Remove an open call, abort its execution if that may still run, and settle its charge."""
    end = call.end
    online.calls.remove(call)
    if end is None and not call.is_durable:
        online.heartbeat.abort_call(call.job.job_id)
    settle_charge(online.charges, admitted.charge, call, now_s=online.clock.monotonic_s())
    if end is not None and end.status_code < 400:
        online.execution.add(call.job.pool, end.execution_s)
    metrics.ENDED.labels(call.job.endpoint, _end_label(call)).inc()


def settle_charge(charges: TokenCharges, charge: Charge, call: OpenCall, *, now_s: float) -> None:
    """Charge a call that has ended here: its usage, or what is known until its replica reports."""
    if call.end is not None:
        charges.settle(charge, call.end, now_s=now_s)
        return
    has_job_ended = call.failure is not None and call.failure.code in _ENDS_JOB
    continues = call.is_durable and not has_job_ended
    charges.await_report(
        call.job.job_id,
        charge,
        has_started=call.has_started or continues,
        piece_count=call.piece_count,
        now_s=now_s,
    )


def _end_label(call: OpenCall) -> str:
    if call.is_disconnected:
        return "left"
    if call.failure is not None:
        return call.failure.code or "error"
    if call.end is None:
        return "accepted"
    return "answered" if call.end.status_code < 400 else "error"
