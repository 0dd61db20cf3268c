"""Idempotent POST requests: those with an Idempotency-Key, and retries after a lost response.

Official clients retry a POST whose response was lost, without a key but with a retry count. So the
response is saved for a while under what a retry has in common with the first attempt.
"""

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

import sqlalchemy as sa
from fastapi import Request, Response

from api import metrics
from api.http.errors import ApiError
from api.runtime.api_services import Services
from api.runtime.database import DatabaseUnavailableError
from api.settings import ApiSettings
from jobs.store import idempotency
from jobs.store.idempotency import KEY_CHARS_MAX, IdempotencyClaim, KeyScope, StoredAnswer
from tenancy.api_keys import Principal

KEY: Final = b"idempotency-key"
RETRY_COUNT: Final = b"x-stainless-retry-count"
OPT_OUT: Final = b"x-millrace-no-retry-protection"
KEY_HELD_S: Final = 10.0
"""Longest time that a route of FastAPI holds a key for work that outlasts its transaction."""

REPLAYED: Final = ("idempotent-replayed", "true")

_KEY_CHARS: Final = re.compile(rb"[^\x00-\x1f\x7f]{1,%d}" % KEY_CHARS_MAX)
_RETRY_COUNT: Final = re.compile(rb"[0-9]{1,3}")


@dataclass(frozen=True, slots=True)
class IdempotencyContext:
    """The idempotency headers of one POST request."""

    principal: Principal
    route: str  # method and path
    arrived_s: float  # monotonic
    key: str | None  # sent by the client
    prior_attempts: int | None  # None: the client sends no retry count, or opts out
    settings: ApiSettings = field(repr=False)

    def claim(self, body_sha256: bytes, now_s: Callable[[], float]) -> IdempotencyClaim | None:
        """Return the claim to look up and to save, or None when every such POST is new."""
        if self.key is not None:
            return self._claim(KeyScope.CLIENT, self.key, body_sha256, now_s)
        if self.prior_attempts is None:
            return None
        parts = (self.principal.key_id.bytes, self.route.encode(), body_sha256)
        name = hashlib.sha256(b"\0".join(parts)).hexdigest()
        return self._claim(KeyScope.RETRY, name, body_sha256, now_s)

    def for_client_key_only(self) -> "IdempotencyContext":
        """Return the context of a repeatable action: only a key of the client marks a retry."""
        return replace(self, prior_attempts=None)

    def _claim(
        self, scope: KeyScope, key: str, body_sha256: bytes, now_s: Callable[[], float]
    ) -> IdempotencyClaim:
        settings = self.settings
        is_client_key = scope is KeyScope.CLIENT
        return IdempotencyClaim(
            tenant_id=self.principal.tenant_id,
            scope=scope,
            key=key,
            route=self.route,
            body_sha256=body_sha256,
            keep_s=settings.idempotency_keep_s if is_client_key else settings.retry_protection_s,
            attempt=self.prior_attempts or 0,
            age_s=lambda: max(0.0, now_s() - self.arrived_s),
        )


def idempotency_from_headers(
    headers: Mapping[bytes, bytes],
    principal: Principal,
    route: str,
    *,
    settings: ApiSettings,
    arrived_s: float,
) -> IdempotencyContext:
    """Read the headers, by lower-case name. Raises ApiError (400) for an invalid key."""
    key = headers.get(KEY)
    if key is not None and not _KEY_CHARS.fullmatch(key.strip()):
        raise ApiError(
            400,
            f"The idempotency key must have 1 to {KEY_CHARS_MAX} printable characters.",
            code="idempotency_key_invalid",
            param="Idempotency-Key",
        )
    retry_count = headers.get(RETRY_COUNT, b"")
    is_counted = (
        _RETRY_COUNT.fullmatch(retry_count) and headers.get(OPT_OUT, b"").lower() != b"true"
    )
    return IdempotencyContext(
        principal=principal,
        route=route,
        arrived_s=arrived_s,
        key=None if key is None else key.strip().decode("latin-1"),
        prior_attempts=int(retry_count) if is_counted else None,
        settings=settings,
    )


def idempotency_of_request(
    request: Request, principal: Principal, services: Services
) -> IdempotencyContext:
    """Read the headers of a request to FastAPI. Call it before the body is read."""
    return idempotency_from_headers(
        dict(request.scope["headers"]),
        principal,
        f"{request.method} {request.url.path}",
        settings=services.settings,
        arrived_s=services.keys.now_s(),
    )


async def execute_once(
    context: IdempotencyContext,
    services: Services,
    body_sha256: bytes,
    work: Callable[[sa.Connection], StoredAnswer],
) -> tuple[StoredAnswer, bool]:
    """Return the answer of `work` and False, or the saved answer to an equal POST and True.

    The effect of `work` and its answer are committed together. Raises what `work` raises,
    IdempotencyKeyInFlightError, IdempotencyKeyReusedError, DatabaseUnavailableError; then nothing
    is saved.
    """
    claim = context.claim(body_sha256, services.keys.now_s)
    answer, is_replay = await services.database.run_for_tenant(
        context.principal.tenant_id, idempotency.answer_once, claim, work
    )
    if is_replay and claim is not None:
        metrics.REPLAYED.labels(claim.scope.value).inc()
    return answer, is_replay


async def execute_once_holding_key(
    context: IdempotencyContext,
    services: Services,
    body_sha256: bytes,
    begin: Callable[[sa.Connection], UUID],
    finish: Callable[[UUID], Awaitable[StoredAnswer]],
) -> tuple[StoredAnswer, bool]:
    """Like `execute_once`, for work that outlasts its transaction and that `finish` answers.

    The effect of `begin` and the key, held for at most KEY_HELD_S, are committed together.
    """
    claim = context.claim(body_sha256, services.keys.now_s)
    tenant_id, run_for_tenant = context.principal.tenant_id, services.database.run_for_tenant
    if claim is None:
        return await finish(await run_for_tenant(tenant_id, begin)), False

    def begin_and_hold(connection: sa.Connection) -> StoredAnswer | UUID:
        saved = idempotency.find_answer(connection, claim)
        if saved is not None:
            return saved
        started = begin(connection)
        idempotency.mark_in_flight(connection, claim, until_s=KEY_HELD_S)
        return started

    started = await run_for_tenant(tenant_id, begin_and_hold)
    if isinstance(started, StoredAnswer):
        metrics.REPLAYED.labels(claim.scope.value).inc()
        return started, True
    is_saved = False
    try:
        answer = await finish(started)
        is_saved = await run_for_tenant(tenant_id, idempotency.complete_in_flight, claim, answer)
    finally:
        if not is_saved:
            with suppress(DatabaseUnavailableError):  # then the key is free after KEY_HELD_S
                await run_for_tenant(tenant_id, idempotency.release_key, claim)
    return answer, False


async def find_saved_answer(
    context: IdempotencyContext, services: Services, body_sha256: bytes
) -> StoredAnswer | None:
    """Return the saved answer to an equal POST.

    For routes that check a request before they execute it: a check may fail the second time. Raises
    IdempotencyKeyInFlightError, IdempotencyKeyReusedError, DatabaseUnavailableError.
    """
    claim = context.claim(body_sha256, services.keys.now_s)
    if claim is None:
        return None
    answer = await services.database.run_for_tenant(claim.tenant_id, idempotency.find_answer, claim)
    if answer is not None:
        metrics.REPLAYED.labels(claim.scope.value).inc()
    return answer


async def may_have_saved_answer(context: IdempotencyContext, services: Services) -> bool:
    """Whether a request whose body is not read yet may have a saved answer."""
    claim = context.claim(b"", services.keys.now_s)
    if claim is None or not claim.may_repeat:
        return False
    return await services.database.run_for_tenant(
        claim.tenant_id, idempotency.may_have_answer, claim
    )


def saved_response(answer: StoredAnswer, *, is_replay: bool) -> Response:
    """Return an answer as JSON; a replay has a header that says so."""
    headers = dict((REPLAYED,)) if is_replay else {}
    return Response(answer.body, answer.status_code, headers, media_type="application/json")
