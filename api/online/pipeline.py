"""A call from its head to its answer, in steps; each may refuse."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from api.auth.principals import authenticate_headers
from api.http.errors import as_api_error
from api.http.responses import ApiError
from api.online import metrics
from api.online.admit.admission import OpenCallCounts, OpenCallLimits, find_refusal, no_capacity
from api.online.admit.call_planning import QUEUE_TIMEOUT_HEADER, plan_call
from api.online.admit.rate_limits import Charge
from api.online.answer.complete_responses import error_as_response, send_response
from api.online.answer.response_cache import MISS
from api.online.await_reply.open_call import OpenCall
from api.online.await_reply.running_call import RunningCall
from api.online.calls import CompleteResponse, ParsedCall, PlannedCall, PreparedCall, RawHeaders
from api.online.online_runtime import OnlineRuntime
from api.online.receive.body_reading import read_body
from api.online.receive.call_parsing import parse_call
from api.online.receive.exchange import Exchange
from api.online.receive.preferences import check_zero_retention, has_key, preferred_wait_s
from api.online.send.call_sender import call_item
from core.errors import MillraceError
from jobs.store.idempotency import version_header
from tenancy.api_keys import Principal


class CallPipeline:
    """Serves the calls of one process."""

    def __init__(self, online: OnlineRuntime) -> None:
        """Serve by the parts of `online`."""
        self._online = online
        settings = online.settings
        self._bounds = OpenCallLimits(settings.open_calls_max, settings.open_calls_per_tenant_max)

    async def serve(self, exchange: Exchange) -> None:
        """Answer one call."""
        headers: RawHeaders = []
        try:
            await self._serve(exchange, headers)
        except MillraceError as error:
            known = as_api_error(error)
            if known is None:
                raise
            await self._refuse(exchange, known, headers)
        except ApiError as error:
            await self._refuse(exchange, error, headers)

    async def _serve(self, exchange: Exchange, headers: RawHeaders) -> None:
        """Go through the steps; `headers` grow with what is known of the call."""
        online = self._online
        principal = await authenticate_headers(
            exchange.text(b"authorization"), exchange.text(b"x-api-key"), online.services
        )
        exchange.belong_to(principal.tenant_id)
        parsed = parse_call(
            exchange.endpoint,
            await read_body(exchange, online.settings),
        )
        exchange = _with_default_wait(exchange, parsed, principal, online.settings.waits_s)
        check_zero_retention(parsed, exchange.headers, zero_retention=principal.zero_retention)
        charge = self._charge(principal, parsed, headers)
        try:
            await self._serve_charged(exchange, principal, parsed, charge, headers)
        except (ApiError, MillraceError):
            self._uncharge(charge, headers)  # it was not sent; what was is settled
            raise

    async def _serve_charged(
        self,
        exchange: Exchange,
        principal: Principal,
        parsed: ParsedCall,
        charge: Charge,
        headers: RawHeaders,
    ) -> None:
        online = self._online
        planned = await plan_call(online, exchange, principal, parsed)
        headers += _identity(planned)
        cache_key = None if planned.job.key_name else online.cache.key_of(planned)
        if cache_key is not None:
            found = online.cache.find(cache_key)
            if found is not None:
                self._uncharge(charge, headers)
                await self._finish(exchange, found, headers)
                return
            headers.append(MISS)
        begun = await self._begin(planned, exchange)
        headers += begun.headers
        if begun.answer is not None:
            if begun.job is None:
                self._uncharge(charge, headers)
                headers.remove(_version(planned))  # its own is of the version that answered then
            self._send_only(planned, begun)
            await self._finish(exchange, begun.answer, headers)
        elif begun.recording is None:
            await RunningCall(online, exchange, planned, charge, headers, cache_key).run(begun)
        else:
            recorded = replace(exchange, recording=begun.recording)
            try:
                await RunningCall(online, recorded, planned, charge, headers, cache_key).run(begun)
            finally:
                await begun.recording.close()

    def _send_only(self, planned: PlannedCall, begun: PreparedCall) -> None:
        """Send a call that was answered already; one that the log refuses is repaired later."""
        if begun.job is None:
            return
        online, parsed = self._online, planned.parsed
        call = OpenCall(begun.job, now_s=online.clock.monotonic_s())
        item = call_item(begun.job, parsed.body, parsed.token_count, begun.line_bytes)
        with suppress(ApiError):
            online.sender.send(call, item)

    def _charge(self, principal: Principal, parsed: ParsedCall, headers: RawHeaders) -> Charge:
        """Charge the estimate, as far as it can be. Raises ApiError (429)."""
        now_s = self._online.clock.monotonic_s()
        buckets = self._online.limits.of(principal.tenant_id, now_s=now_s)
        charged = buckets.admit(parsed.token_count, now_s=now_s)
        headers += buckets.headers(now_s=now_s)
        return Charge(buckets, charged)

    def _uncharge(self, charge: Charge, headers: RawHeaders) -> None:
        """Give back the tokens of a call that is not sent, and say what is left with them."""
        now_s = self._online.clock.monotonic_s()
        charge.settle(0, now_s=now_s)
        left = dict(charge.buckets.headers(now_s=now_s))
        headers[:] = [(name, left.get(name, value)) for name, value in headers]

    def _require_room(self, planned: PlannedCall) -> None:
        """Refuse what would wait in vain. Raises ApiError (429 or 503)."""
        online, pool_name = self._online, planned.route.pool
        online.sender.require_log()
        pool = online.pools.find(pool_name)
        if pool is None and online.pools.may_tell(now_s=online.clock.monotonic_s()):
            raise no_capacity()
        calls = online.calls
        load = OpenCallCounts(
            calls.count, calls.of_tenant[planned.principal.tenant_id], calls.of_pool[pool_name]
        )
        refused = find_refusal(
            load,
            self._bounds,
            pool,
            execution_s=online.execution.seconds(pool_name),
            time_left_s=planned.queue_timeout_s or planned.timeout_s,
        )
        if refused is not None:
            raise refused

    async def _begin(self, planned: PlannedCall, exchange: Exchange) -> PreparedCall:
        """Commit a durable call; others need no more than their record and room. Raises ApiError.

        A call that may have been answered before is looked up even where there is no room.
        """
        refused = None
        try:
            self._require_room(planned)
        except ApiError as no_room:
            refused = no_room
        if planned.is_durable or has_key(exchange.headers):
            with self._online.calls.coming(planned.job):
                return await self._online.durable.begin(planned, exchange, refused)
        if refused is not None:
            raise refused
        return PreparedCall(planned.job)

    async def _finish(
        self, exchange: Exchange, answer: CompleteResponse, headers: RawHeaders
    ) -> None:
        whole = CompleteResponse(answer.status, answer.body, [*headers, *answer.headers])
        await send_response(exchange, whole)

    async def _refuse(self, exchange: Exchange, error: ApiError, headers: RawHeaders) -> None:
        metrics.REFUSED.labels(error.code or "other").inc()
        await send_response(exchange, error_as_response(error, headers))


def _identity(planned: PlannedCall) -> RawHeaders:
    durable = (b"x-millrace-durable", b"true" if planned.is_durable else b"false")
    return [_version(planned), durable]


def _version(planned: PlannedCall) -> tuple[bytes, bytes]:
    name, value = version_header(planned.route.name, planned.route.version)
    return name.encode(), value.encode()


def _with_default_wait(
    exchange: Exchange, parsed: ParsedCall, principal: Principal, waits_s: Mapping[str, float]
) -> Exchange:
    """Return the call as if it preferred its route's wait, where it says nothing of its own.

    One that bounds its wait for an execution waits for its answer.
    Of a tenant that retains nothing no answer may be kept for later, so there it means nothing.
    """
    wait_s = waits_s.get(parsed.endpoint)
    if wait_s is None:
        return exchange
    bounds_queue = parsed.queue_timeout_s is not None or QUEUE_TIMEOUT_HEADER in exchange.headers
    stays = parsed.stream or parsed.background or principal.zero_retention or bounds_queue
    if stays or preferred_wait_s(exchange.headers) is not None:
        return exchange
    preferred = [exchange.headers.get(b"prefer", b""), b"wait=%d" % round(wait_s)]
    prefer = b", ".join(filter(None, preferred))
    return replace(exchange, headers={**exchange.headers, b"prefer": prefer})
