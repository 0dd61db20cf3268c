"""Degrades calls of tenants that allow it, before they would be refused.

1. A call that the pool of its model refuses is sent to the tenant's smaller model, if the pool of
   that one admits it.
2. While the predicted wait is above a threshold, the output is capped.

Only calls that generate text and wait for their answer are degraded: one that may be answered by a
job has time. A degraded call says so in a header, in each replay of its answer and on the usage
ledger.
"""

import re
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

import msgspec

from api.http.errors import ApiError
from api.online.admit.call_admission import CallAdmission
from api.online.admit.model_cache import ModelCache
from api.online.admit.token_charges import Charge, TokenCharges
from api.online.call_request import may_be_accepted
from api.online.calls import PlannedCall
from api.online.exchange import Exchange
from api.runtime.database import DatabaseUnavailableError
from core.bodies.output_caps import CAPPED_ENDPOINTS, with_model, with_output_cap
from core.bodies.token_estimates import requested_tokens
from core.tenant_claims import reserved_share
from jobs.store.idempotency import DEGRADED
from registry.models import ModelVersion

DEGRADED_HEADER: Final = DEGRADED.encode()

_TOKEN: Final = re.compile(r"[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*")  # sf-token, RFC 9651


class DegradationDeps(NamedTuple):
    """What degrading calls needs."""

    admission: CallAdmission
    models: ModelCache
    charges: TokenCharges
    threshold_s: float  # predicted wait above which the output is capped


async def degrade_call(
    deps: DegradationDeps, planned: PlannedCall, charge: Charge, exchange: Exchange, *, now_s: float
) -> PlannedCall:
    """Return the call as it is to be admitted: unchanged, or degraded.

    The body of a degraded call and its charge are changed in place. Until it is prepared, it has
    two bodies; a call is not degraded if the memory limit has no bytes for the second.
    """
    if not _is_degradable(planned, exchange):
        return planned
    found = deps.admission.forecast(planned, now_s=now_s)
    if found is None:
        return planned
    call, principal, parsed = planned, planned.principal, planned.parsed
    done: dict[str, str] = {}
    body, wait_s = parsed.body, found.wait_s
    if found.is_refused:
        smaller = await _smaller_model(deps, call, now_s=now_s)
        if smaller is None:
            return call  # and it is refused
        name = smaller.route.requested_name
        done["model"] = f"model={_item(name)};requested={_item(parsed.model)}"
        call, wait_s = smaller, deps.admission.queue(smaller.route.pool, now_s=now_s).wait_s
        body = with_model(body, name)
    cap = principal.degraded_output_tokens_max
    if cap is not None and wait_s > deps.threshold_s:
        capped = with_output_cap(parsed.endpoint, body, cap)
        if capped is not None:
            body = capped
            done["output_tokens"] = f"output_tokens={cap}"
    if not done or not _has_memory(exchange, len(parsed.body) + len(body)):
        return planned
    parsed.client_body, parsed.body, parsed.model = parsed.body, body, call.job.model
    parsed.requested = requested_tokens(parsed.endpoint, body)
    deps.charges.lower(charge, parsed.requested, job=call.job, now_s=now_s)
    job = msgspec.structs.replace(call.job, degraded=", ".join(done.values()))
    return replace(call, job=job, degraded_by=tuple(done))


def _is_degradable(call: PlannedCall, exchange: Exchange) -> bool:
    return (
        call.principal.is_degradable
        and call.parsed.endpoint in CAPPED_ENDPOINTS
        and not may_be_accepted(call.parsed, exchange.headers)
    )


def _has_memory(exchange: Exchange, byte_count: int) -> bool:
    """Reserve memory for the bodies of a call; return whether it was free."""
    try:
        exchange.body_reservation.grow_to(byte_count)
    except ApiError:
        return False
    return True


async def _smaller_model(
    deps: DegradationDeps, call: PlannedCall, *, now_s: float
) -> PlannedCall | None:
    """Return the call for the tenant's smaller model; None if that one does not admit it."""
    name = call.principal.degraded_model
    if name is None or name == call.route.name:
        return None
    with suppress(ApiError, DatabaseUnavailableError):
        left_s = call.left_s(call.timeout_s, now_s=now_s)
        route = await deps.models.find(
            name, call.parsed.endpoint, left_s=left_s, tenant_id=call.principal.tenant_id
        )
        if (route.name, route.version) == (call.route.name, call.route.version):
            return None  # another name of the same version
        planned = _with_route(call, route)
        if not deps.admission.has_capacity(route.pool):
            return None
        found = deps.admission.forecast(planned, now_s=now_s)
        return None if found is not None and found.is_refused else planned
    return None


def _with_route(call: PlannedCall, route: ModelVersion) -> PlannedCall:
    job = msgspec.structs.replace(
        call.job,
        model=route.requested_name,
        model_version=route.version,
        base_version=route.base_version or "",
        pool=route.pool,
        reserved=reserved_share(call.principal.reserved_shares, route.pool),
    )
    return replace(call, route=route, job=job)


def _item(name: str) -> str:
    """Return a name as a token or a string of structured fields (RFC 9651)."""
    if _TOKEN.fullmatch(name):
        return name
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
