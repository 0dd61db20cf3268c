"""Responses to a call that does not stream: from its reply, or from the failure that ended it."""

import asyncio
from http import HTTPStatus
from typing import Final

from api.http.errors import ApiError
from api.online.await_reply.open_call import OpenCall
from api.online.call_errors import (
    LOCAL_FAILURES,
    QUEUE_TIMEOUT,
    deadline_exceeded,
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

        Raises ApiError: 502 or 503 when the body is not available, 504 after the deadline.
        """
        if end.body_key is None:
            return end.body
        online = self._online
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
