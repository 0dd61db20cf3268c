"""The path of an online call: receive, admit, send, await the reply, answer."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Final

import msgspec

from api.auth.authentication import authenticate_headers
from api.http.errors import ApiError, as_api_error
from api.online import metrics
from api.online.admit.admission import correct_limit_headers
from api.online.admit.call_admission import OverloadedError
from api.online.admit.call_planning import plan_call
from api.online.admit.degradation import DEGRADED_HEADER, DegradationDeps, degrade_call
from api.online.admit.sleeping_pools import Place
from api.online.admit.token_charges import Charge
from api.online.answer.event_stream import EventStreamResponse
from api.online.answer.reply_responses import ReplyResponses, close_call, settle_charge
from api.online.answer.response_cache import MISS
from api.online.await_reply.open_calls import OpenCall
from api.online.call_errors import deadline_exceeded, shutting_down
from api.online.call_request import (
    check_zero_retention,
    has_idempotency_key,
    parse_call,
    read_body,
    with_default_wait,
)
from api.online.calls import (
    AdmittedCall,
    PlannedCall,
    PreparedCall,
    ReceivedCall,
    Timings,
    call_deadline,
)
from api.online.exchange import (
    CompleteResponse,
    Exchange,
    RawHeaders,
    error_as_response,
    send_response,
)
from api.online.online_runtime import OnlineRuntime
from api.online.send.call_keys import encrypt_item
from api.online.send.call_sender import BODY_BYTES_MAX, call_item
from core.errors import MillraceError
from core.stages import Stage
from jobs.store.idempotency import version_header
from topics.metrics import STAGE_SECONDS
from topics.records.records import JobRef

_GATEWAY_SECONDS: Final = STAGE_SECONDS.labels(Stage.GATEWAY, "interactive")

START_REPORT_S: Final = 0.25
"""Time for a replica's report that a call has started. A later report finds the call ended."""


class CallPipeline:
    """Serves the online calls of one process."""

    def __init__(self, online: OnlineRuntime) -> None:
        self._online = online

    async def serve(self, exchange: Exchange) -> None:
        """Serve one call in five steps. Each step may refuse the call.

        docs/architecture.md describes these steps as stages 1 to 4 and 8 of an online call.

        1. Receive: authenticate the key, read and parse the body.
        2. Admit: charge the rate limits, find the model, look for a stored response, check the
           load, and commit a durable call to Postgres, from where on it survives this process.
        3. Send: store a large body, register the open call, produce its record.
        4. Await the reply: until it is complete, a timeout passes or the client disconnects.
        5. Answer: send the response. A stream is sent while its reply arrives.

        What the steps began is undone in reverse order before a refusal is sent.
        """
        headers: RawHeaders = []  # of every response to the call; grows with each step
        try:
            async with AsyncExitStack() as cleanup:
                received = await self._receive(exchange)
                admitted = await self._admit(received, headers, cleanup)
                call = await self._send(admitted, cleanup)
                await self._await_reply(admitted, call)
                await self._answer(admitted, call)
        except MillraceError as error:
            known = as_api_error(error)
            if known is None:
                raise
            await self._refuse(exchange, known, headers)
        except ApiError as error:
            await self._refuse(exchange, error, headers)

    async def _receive(self, exchange: Exchange) -> ReceivedCall:
        """Authenticate the key, read the body and parse it. Raises ApiError."""
        online = self._online
        principal = await authenticate_headers(
            exchange.text(b"authorization"),
            exchange.text(b"x-api-key"),
            online.services,
            address=exchange.client_address,
        )
        exchange.assign_tenant(principal)
        body = await read_body(exchange, online.settings)
        parsed = parse_call(exchange.endpoint, body, online.body_limits)
        received = ReceivedCall(exchange, principal, parsed)
        received = with_default_wait(received, online.settings.waits_s)
        check_zero_retention(received)
        return received

    async def _admit(
        self, received: ReceivedCall, headers: RawHeaders, cleanup: AsyncExitStack
    ) -> AdmittedCall:
        """Charge, plan and check the call; commit it if it is durable. Raises ApiError."""
        online, exchange = self._online, received.exchange
        charge = self._charge_estimate(received, headers)
        cleanup.enter_context(self._refunded_if_refused(charge, headers))
        planned = await plan_call(online, received)
        online.charges.note_served_by(charge, planned.job)
        cache_key = None if planned.job.key_name else online.cache.key_of(planned)
        cached = None if cache_key is None else online.cache.find(cache_key)
        if cached is not None:
            headers += _call_headers(planned)
            self._refund(charge, headers)
            prepared = PreparedCall(None, answer=cached)
        else:
            if cache_key is not None:
                headers.append(MISS)
            headers += _call_headers(planned)  # of a refusal, too
            requested_version = _version_header(planned)
            planned = await self._degrade(planned, charge, exchange)
            prepared = await self._prepare(planned, exchange, cleanup)
            planned.parsed.client_body = b""
            headers += prepared.headers
            if prepared.job is None:  # a replay, with the version that answered then
                self._refund(charge, headers)
                headers.remove(requested_version)
            elif planned.degraded_by:
                cache_key = None  # it answers another request than the client's
                headers.remove(requested_version)
                headers += _degraded_headers(planned)
                for kind in planned.degraded_by:
                    metrics.DEGRADED.labels(kind).inc()
            if prepared.recording is not None:
                exchange = replace(exchange, recording=prepared.recording)
                cleanup.push_async_callback(prepared.recording.close)
        return AdmittedCall(
            exchange=exchange,
            planned=planned,
            prepared=prepared,
            charge=charge,
            headers=headers,
            cache_key=cache_key,
            timings=Timings(exchange.arrived_s),
        )

    async def _send(self, admitted: AdmittedCall, cleanup: AsyncExitStack) -> OpenCall | None:
        """Send the record; return the open call, or None when the response is known already."""
        if admitted.prepared.answer is not None:
            self._send_in_background(admitted)
            return None
        job, line_bytes = await self._store_large_body(admitted, cleanup)
        call = self._open(admitted, job, cleanup)
        try:
            self._produce(admitted, call, line_bytes)
        except ApiError as failure:
            if admitted.prepared.wait_s is None:
                raise
            call.fail(failure)  # the call is committed: the response refers to its job
        return call

    async def _await_reply(self, admitted: AdmittedCall, call: OpenCall | None) -> None:
        """Wait for the end of the reply. A stream does not wait: `_answer` sends each piece."""
        if call is None or call.is_stream:
            return
        wait_s = admitted.prepared.wait_s
        try:
            if wait_s is None:
                await call.wait_for_end()
            else:
                with suppress(TimeoutError):
                    left_s = admitted.planned.left_s(wait_s, now_s=self._online.clock.monotonic_s())
                    async with asyncio.timeout(left_s):
                        await call.wait_for_end()
        except asyncio.CancelledError:  # the server stops
            call.fail(shutting_down())

    async def _answer(self, admitted: AdmittedCall, call: OpenCall | None) -> None:
        """Send the response: the known one, the stream, or the one that the reply gives."""
        exchange, headers = admitted.exchange, admitted.headers
        if call is None:
            answer = admitted.prepared.answer
            assert answer is not None
            headers = [*headers, *answer.headers]
            await send_response(exchange, CompleteResponse(answer.status, answer.body, headers))
            return
        if call.end is not None:  # else it is settled when it is closed
            now_s = self._online.clock.monotonic_s()
            settle_charge(self._online.charges, admitted.charge, call, now_s=now_s)
            correct_limit_headers(headers, admitted.charge.buckets, now_s=now_s)
        responses = ReplyResponses(self._online, admitted, call)
        if call.is_stream:
            timings, clock = admitted.timings, self._online.clock
            stream = EventStreamResponse(exchange, headers, timings, clock, responses.fetch_body)
            await stream.run(call)
            return
        if call.is_disconnected:
            return
        response = await responses.create()
        try:
            await send_response(exchange, response)
        except ApiError as limit_exceeded:
            await send_response(exchange, responses.fallback(limit_exceeded))

    def _charge_estimate(self, received: ReceivedCall, headers: RawHeaders) -> Charge:
        """Charge the estimated tokens to the tenant's rate limits. Raises ApiError (429)."""
        now_s, parsed = self._online.clock.monotonic_s(), received.parsed
        source = (received.principal.tenant_id, parsed.model, parsed.endpoint)
        charge = self._online.charges.reserve(source, parsed.requested, now_s=now_s)
        headers += charge.buckets.headers(now_s=now_s)
        return charge

    def _refund(self, charge: Charge, headers: RawHeaders) -> None:
        """Refund the tokens of a call that is not sent, and correct the headers."""
        now_s = self._online.clock.monotonic_s()
        charge.settle(0, now_s=now_s)
        correct_limit_headers(headers, charge.buckets, now_s=now_s)

    @contextmanager
    def _refunded_if_refused(self, charge: Charge, headers: RawHeaders) -> Iterator[None]:
        """Refund a call that a later step refuses; the charge of a sent call is settled already."""
        try:
            yield
        except (ApiError, MillraceError):
            self._refund(charge, headers)
            raise

    async def _prepare(
        self, planned: PlannedCall, exchange: Exchange, cleanup: AsyncExitStack
    ) -> PreparedCall:
        """Check the load and commit a durable call. Raises ApiError.

        A call with an idempotency key is looked up even when the load would refuse it: a replay
        needs no capacity, so only a call that has none is promised a place and counted as refused.
        `cleanup` ends the place of a call that waits for its pool to start.
        """
        online, refused, place, prepared = self._online, None, None, PreparedCall(planned.job)
        try:
            place = self._check_load(planned)
            if place is not None:
                cleanup.callback(place.release)
        except ApiError as error:
            refused = error
        try:
            if planned.is_durable or has_idempotency_key(exchange.headers):
                with online.calls.reserve(planned.job):
                    prepared = await online.durable.prepare(planned, exchange, refused)
            elif refused is not None:
                raise refused
        except OverloadedError:
            raise online.admission.refuse(planned, now_s=online.clock.monotonic_s()) from None
        except ApiError as error:
            if error is refused:
                online.sleeping.note(planned, now_s=online.clock.monotonic_s())
            raise
        if place is not None:
            if prepared.job is None:  # a replay
                place.release()
            else:
                online.sleeping.admit(planned, place, now_s=online.clock.monotonic_s())
        return prepared

    async def _degrade(
        self, planned: PlannedCall, charge: Charge, exchange: Exchange
    ) -> PlannedCall:
        """Return the call as it is admitted: of a tenant that allows it, degraded under load."""
        online = self._online
        if not planned.principal.is_degradable:
            return planned
        deps = DegradationDeps(
            online.admission, online.models, online.charges, online.settings.degrade_wait_s
        )
        now_s = online.clock.monotonic_s()
        return await degrade_call(deps, planned, charge, exchange, now_s=now_s)

    def _check_load(self, planned: PlannedCall) -> Place | None:
        """Return the place of a call whose pool sleeps; None if it serves.

        Raises ApiError (429 or 503) when the call is not admitted.
        """
        online, now_s = self._online, self._online.clock.monotonic_s()
        online.sender.check_log_available(planned.job)
        place = None
        if not online.pools.serves(planned.job) and online.pools.is_warm(now_s=now_s):
            place = online.sleeping.reserve(planned, now_s=now_s)
        try:
            online.admission.check(planned, now_s=now_s)
        except ApiError:
            if place is not None:
                place.release()
            raise
        return place

    def _send_in_background(self, admitted: AdmittedCall) -> None:
        """Produce the record of a call that is answered with 202; a replay has no record.

        When the log does not accept the record, the job's recovery sends it later.
        """
        job = admitted.prepared.job
        if job is not None:
            call = OpenCall(job, now_s=self._online.clock.monotonic_s())
            charge, line_bytes = admitted.charge, admitted.prepared.line_bytes
            body, tokens = admitted.planned.parsed.body, charge.estimate
            settle_charge(self._online.charges, charge, call, now_s=call.opened_s)
            with suppress(ApiError):
                self._online.sender.send(call, call_item(job, body, tokens, line_bytes))

    async def _store_large_body(
        self, admitted: AdmittedCall, cleanup: AsyncExitStack
    ) -> tuple[JobRef, int]:
        """Store a body that does not fit a record; return the job and the length of its line."""
        online, planned, job = self._online, admitted.planned, admitted.prepared.job
        assert job is not None
        if len(planned.parsed.body) <= BODY_BYTES_MAX or job.input_key:
            return job, admitted.prepared.line_bytes
        with online.calls.reserve(job):
            async with call_deadline(planned, online.clock):
                cipher = online.call_keys.cipher(planned.job)
                key, line_bytes = await online.bodies.store_request(planned, cipher)
        cleanup.callback(online.bodies.delete_later, key)
        return msgspec.structs.replace(job, input_key=key), line_bytes

    def _open(self, admitted: AdmittedCall, job: JobRef, cleanup: AsyncExitStack) -> OpenCall:
        """Register the call so that replies, its timeouts and a disconnect reach it."""
        online, loop = self._online, asyncio.get_running_loop()
        now_s = online.clock.monotonic_s()
        call = OpenCall(job, now_s=now_s, cipher=online.call_keys.cipher(job))
        online.calls.add(call)
        cleanup.callback(close_call, online, admitted, call)
        connection = admitted.exchange.connection
        connection.add_disconnect_listener(call.disconnect)
        cleanup.callback(connection.remove_disconnect_listener, call.disconnect)
        planned, now_s = admitted.planned, online.clock.monotonic_s()
        left_s = planned.left_s(planned.timeout_s, now_s=now_s)
        deadline = loop.call_later(left_s, lambda: call.fail(deadline_exceeded()))
        cleanup.callback(deadline.cancel)
        if job.call is not None and job.call.begin_by_s:
            queue_s = job.call.begin_by_s + START_REPORT_S - online.caller_clock.now_s()
            queue_timeout = loop.call_later(queue_s, call.expire_in_queue)
            cleanup.callback(queue_timeout.cancel)
        return call

    def _produce(self, admitted: AdmittedCall, call: OpenCall, line_bytes: int) -> None:
        """Produce the record and free the body: thousands of calls may wait. Raises ApiError."""
        parsed = admitted.planned.parsed
        item = call_item(call.job, parsed.body, admitted.charge.estimate, line_bytes)
        self._online.sender.send(call, encrypt_item(call.job, item, call.cipher))
        parsed.body = parsed.client_body = b""
        admitted.exchange.body_reservation.release()
        admitted.timings.sent_s = self._online.clock.monotonic_s()
        _GATEWAY_SECONDS.observe(admitted.timings.gateway_ms() / 1000)

    async def _refuse(self, exchange: Exchange, error: ApiError, headers: RawHeaders) -> None:
        metrics.REFUSED.labels(error.code or "other").inc()
        await send_response(exchange, error_as_response(error, headers))


def _call_headers(planned: PlannedCall) -> RawHeaders:
    """Return the headers that describe a call: its version and durability."""
    durable = b"true" if planned.is_durable else b"false"
    return [_version_header(planned), (b"x-millrace-durable", durable)]


def _degraded_headers(planned: PlannedCall) -> RawHeaders:
    """Return the headers of a degraded call: the version that answers, and what was changed."""
    return [_version_header(planned), (DEGRADED_HEADER, planned.job.degraded.encode())]


def _version_header(planned: PlannedCall) -> tuple[bytes, bytes]:
    name, value = version_header(planned.job.model, planned.job.model_version)
    return name.encode(), value.encode()
