"""Who serves a call, until when, and what its record says."""

import re
from dataclasses import replace
from typing import Final

import msgspec

from api.http.responses import ApiError
from api.online.await_reply.deadlines import call_deadline
from api.online.calls import ParsedCall, PlannedCall
from api.online.online_runtime import OnlineRuntime
from api.online.receive.call_parsing import header_timeout_s
from api.online.receive.exchange import Exchange
from api.online.receive.preferences import may_be_accepted, wants_durable
from api.online.settings import OnlineSettings
from registry.models import ModelVersion
from tenancy.api_keys import Principal
from topics.records.records import CallRef, JobRef

QUEUE_TIMEOUT_HEADER: Final = b"x-request-queue-timeout-ms"

_DAY_S: Final = 86_400
_TRACEPARENT: Final = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


async def plan_call(
    online: OnlineRuntime, exchange: Exchange, principal: Principal, parsed: ParsedCall
) -> PlannedCall:
    """Return a call that may be sent. Raises ApiError: 400, 404, 504; DatabaseAwayError; for a
    tenant that retains nothing also what a store raises.
    """
    now_s, planned_s = online.caller_clock.now_s(), online.clock.monotonic_s()
    timeout_s = _timeout_s(exchange, parsed, principal, online.settings)
    route = await online.routes.find(parsed.model, parsed.endpoint, left_s=timeout_s)
    queue_timeout_s = _queue_timeout_s(exchange, parsed, online.settings, timeout_s)
    call = CallRef(
        caller_id=online.caller_id,
        reply_partition=online.reply_partition,
        stream=parsed.stream,
        durable=wants_durable(parsed, exchange.headers),
        begin_by_s=0.0 if queue_timeout_s is None else now_s + queue_timeout_s,
    )
    day = int(online.clock.wall_s() // _DAY_S)
    job = _job(exchange, principal, route, call, day=day, deadline_s=now_s + timeout_s)
    planned = PlannedCall(
        request_id=exchange.request_id,
        principal=principal,
        parsed=parsed,
        route=route,
        job=job,
        timeout_s=timeout_s,
        queue_timeout_s=queue_timeout_s,
        planned_s=planned_s,
    )
    if not principal.zero_retention:
        return planned
    async with call_deadline(planned, online.clock):
        key_name = await online.call_keys.name()
    return replace(planned, job=msgspec.structs.replace(job, key_name=key_name))


def _timeout_s(
    exchange: Exchange, parsed: ParsedCall, principal: Principal, settings: OnlineSettings
) -> float:
    """Return the least of what the client, its tenant, the route and the installation allow."""
    most_s = settings.call_timeout_s
    if may_be_accepted(parsed, exchange.headers):
        most_s = settings.background_timeout_s
    asked_s = header_timeout_s(exchange.headers, b"x-request-timeout-ms")
    asked_s = parsed.timeout_s if asked_s is None else asked_s
    return _least(
        most_s, asked_s, principal.call_timeout_s, settings.timeouts_s.get(parsed.endpoint)
    )


def _queue_timeout_s(
    exchange: Exchange, parsed: ParsedCall, settings: OnlineSettings, timeout_s: float
) -> float | None:
    """Return how long a call may wait for its execution; None where its deadline says it all.

    Raises ApiError (400) for a call that nobody waits for and that asks for it.
    """
    asked_s = header_timeout_s(exchange.headers, QUEUE_TIMEOUT_HEADER)
    in_header = asked_s is not None
    asked_s = asked_s if in_header else parsed.queue_timeout_s
    if may_be_accepted(parsed, exchange.headers):
        if asked_s is not None:
            header = QUEUE_TIMEOUT_HEADER.decode()
            raise ApiError(
                400,
                "A call that may be answered by a job waits until its deadline: leave out "
                f"'{header}' and 'queue_timeout_ms'.",
                code="invalid_value",
                param=header if in_header else "queue_timeout_ms",
            )
        return None
    least_s = _least(timeout_s, asked_s, settings.queue_timeout_s)
    return least_s if least_s < timeout_s else None


def _least(most_s: float, *limits_s: float | None) -> float:
    return min([most_s, *(limit_s for limit_s in limits_s if limit_s is not None)])


def _job(
    exchange: Exchange,
    principal: Principal,
    route: ModelVersion,
    call: CallRef,
    *,
    day: int,
    deadline_s: float,
) -> JobRef:
    trace = _TRACEPARENT.fullmatch(exchange.text(b"traceparent") or "")
    return JobRef(
        job_id=exchange.request_id,
        day=day,
        tenant_id=principal.tenant_id,
        model=route.name,
        model_version=route.version,
        pool=route.pool,
        endpoint=exchange.endpoint,
        input_key="",
        deadline_s=deadline_s,
        traceparent=trace[0] if trace else "",
        call=call,
    )
