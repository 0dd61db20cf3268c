"""Planning of a call: its model version, its deadlines and the job reference of its record."""

import re
from dataclasses import replace
from typing import Final

import msgspec

from api.http.errors import ApiError
from api.online.call_request import (
    QUEUE_TIMEOUT_HEADER,
    header_timeout_s,
    may_be_accepted,
    wants_durable,
)
from api.online.calls import PlannedCall, ReceivedCall, call_deadline
from api.online.online_runtime import OnlineRuntime
from api.online.settings import OnlineSettings
from core.tenant_claims import reserved_share
from registry.models import ModelVersion
from topics.records.records import CallRef, JobRef

_DAY_S: Final = 86_400
_TRACEPARENT: Final = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


async def plan_call(online: OnlineRuntime, received: ReceivedCall) -> PlannedCall:
    """Return the plan of a call.

    Raises ApiError: 400, 404, 504; DatabaseUnavailableError. For a tenant with zero retention, also
    the errors of the object store.
    """
    exchange, principal, parsed = received.exchange, received.principal, received.parsed
    now_s, planned_s = online.caller_clock.now_s(), online.clock.monotonic_s()
    timeout_s = _timeout_s(received, online.settings)
    route = await online.models.find(
        parsed.model, parsed.endpoint, left_s=timeout_s, tenant_id=principal.tenant_id
    )
    queue_timeout_s = _queue_timeout_s(received, online.settings, timeout_s)
    call = CallRef(
        caller_id=online.caller_id,
        reply_partition=online.reply_partition,
        stream=parsed.stream,
        durable=wants_durable(parsed, exchange.headers),
        begin_by_s=0.0 if queue_timeout_s is None else now_s + queue_timeout_s,
    )
    day = int(online.clock.wall_s() // _DAY_S)
    job = _job(received, route, call, day=day, deadline_s=now_s + timeout_s)
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
        key_name = await online.call_keys.current_key_name()
    return replace(planned, job=msgspec.structs.replace(job, key_name=key_name))


def _timeout_s(received: ReceivedCall, settings: OnlineSettings) -> float:
    """Return the least of the limits of the client, its tenant, the endpoint and the process."""
    headers, parsed = received.exchange.headers, received.parsed
    default_s = settings.call_timeout_s
    if may_be_accepted(parsed, headers):
        default_s = settings.background_timeout_s
    requested_s = header_timeout_s(headers, b"x-request-timeout-ms")
    requested_s = parsed.timeout_s if requested_s is None else requested_s
    endpoint_s = settings.timeouts_s.get(parsed.endpoint)
    return _least(default_s, requested_s, received.principal.call_timeout_s, endpoint_s)


def _queue_timeout_s(
    received: ReceivedCall, settings: OnlineSettings, timeout_s: float
) -> float | None:
    """Return how long a call may wait for its execution; None when only its deadline applies.

    Raises ApiError (400) for a call that may be answered by a job and requests a queue timeout.
    """
    headers, parsed = received.exchange.headers, received.parsed
    requested_s = header_timeout_s(headers, QUEUE_TIMEOUT_HEADER)
    in_header = requested_s is not None
    requested_s = requested_s if in_header else parsed.queue_timeout_s
    if may_be_accepted(parsed, headers):
        if requested_s is not None:
            header = QUEUE_TIMEOUT_HEADER.decode()
            raise ApiError(
                400,
                "A call that may be answered by a job waits until its deadline: leave out "
                f"'{header}' and 'queue_timeout_ms'.",
                code="invalid_value",
                param=header if in_header else "queue_timeout_ms",
            )
        return None
    least_s = _least(timeout_s, requested_s, settings.queue_timeout_s)
    return least_s if least_s < timeout_s else None


def _least(first_s: float, *others_s: float | None) -> float:
    return min([first_s, *(limit_s for limit_s in others_s if limit_s is not None)])


def _job(
    received: ReceivedCall, route: ModelVersion, call: CallRef, *, day: int, deadline_s: float
) -> JobRef:
    exchange = received.exchange
    trace = _TRACEPARENT.fullmatch(exchange.text(b"traceparent") or "")
    return JobRef(
        job_id=exchange.request_id,
        day=day,
        tenant_id=received.principal.tenant_id,
        model=received.parsed.model,
        model_version=route.version,
        base_version=route.base_version or "",
        pool=route.pool,
        endpoint=exchange.endpoint,
        input_key="",
        deadline_s=deadline_s,
        traceparent=trace[0] if trace else "",
        call=call,
        weight=received.principal.weight,
        reserved=reserved_share(received.principal.reserved_shares, route.pool),
        tenant_class=received.principal.tenant_class,
    )
