"""Which POSTs have their effect once: those with an Idempotency-Key, and repeats of lost answers.

Official clients repeat a POST whose answer was lost, without a key but with a count of their tries.
So an answer is kept for a while under what such a repeat has in common with the first try.
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
from api.http.responses import ApiError
from api.runtime.database import DatabaseUnavailableError
from api.runtime.services import Services
from api.settings import ApiSettings
from jobs.store import idempotency
from jobs.store.idempotency import KEY_CHARS_MAX, Answer, Claim, Scope
from tenancy.api_keys import Principal

KEY: Final = b"idempotency-key"
TRIES: Final = b"x-stainless-retry-count"
OPT_OUT: Final = b"x-millrace-no-retry-protection"
HELD_S: Final = 10.0
"""How long a key is held at most for what outlasts a transaction, in routes of the framework."""

REPLAYED: Final = ("idempotent-replayed", "true")

_KEY_CHARS: Final = re.compile(rb"[^\x00-\x1f\x7f]{1,%d}" % KEY_CHARS_MAX)
_TRIES: Final = re.compile(rb"[0-9]{1,3}")


@dataclass(frozen=True, slots=True)
class IdempotencyContext:
    """What one POST says about being repeated."""

    principal: Principal
    route: str  # method and path
    arrived_s: float  # monotonic
    key: str | None  # the client's own
    tries_before: int | None  # None: its client does not count them, or wants no protection
    settings: ApiSettings = field(repr=False)

    def claim(self, body_sha256: bytes, now_s: Callable[[], float]) -> Claim | None:
        """Return what to look up and to save, None when each such POST counts."""
        if self.key is not None:
            return self._claim(Scope.CLIENT, self.key, body_sha256, now_s)
        if self.tries_before is None:
            return None
        parts = (self.principal.key_id.bytes, self.route.encode(), body_sha256)
        name = hashlib.sha256(b"\0".join(parts)).hexdigest()
        return self._claim(Scope.RETRY, name, body_sha256, now_s)

    def of_own_key(self) -> "IdempotencyContext":
        """Return the same for what may be done again: only a key of the client's makes a repeat."""
        return replace(self, tries_before=None)

    def _claim(
        self, scope: Scope, key: str, body_sha256: bytes, now_s: Callable[[], float]
    ) -> Claim:
        settings = self.settings
        is_own = scope is Scope.CLIENT
        return Claim(
            tenant_id=self.principal.tenant_id,
            scope=scope,
            key=key,
            route=self.route,
            body_sha256=body_sha256,
            keep_s=settings.idempotency_keep_s if is_own else settings.retry_protection_s,
            attempt=self.tries_before or 0,
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
    """Read the headers, by lower-case name. Raises ApiError (400) for a key that is none."""
    key = headers.get(KEY)
    if key is not None and not _KEY_CHARS.fullmatch(key.strip()):
        raise ApiError(
            400,
            f"An idempotency key has 1 to {KEY_CHARS_MAX} printable characters.",
            code="idempotency_key_invalid",
            param="Idempotency-Key",
        )
    tries = headers.get(TRIES, b"")
    counts = _TRIES.fullmatch(tries) and headers.get(OPT_OUT, b"").lower() != b"true"
    return IdempotencyContext(
        principal=principal,
        route=route,
        arrived_s=arrived_s,
        key=None if key is None else key.strip().decode("latin-1"),
        tries_before=int(tries) if counts else None,
        settings=settings,
    )


def idempotency_of_request(
    request: Request, principal: Principal, services: Services
) -> IdempotencyContext:
    """As `idempotency_from_headers`, for a route of the framework. Call it before the body is read."""
    return idempotency_from_headers(
        dict(request.scope["headers"]),
        principal,
        f"{request.method} {request.url.path}",
        settings=services.settings,
        arrived_s=services.keys.now_s(),
    )


async def execute_once(
    repeats: IdempotencyContext,
    services: Services,
    body_sha256: bytes,
    work: Callable[[sa.Connection], Answer],
) -> tuple[Answer, bool]:
    """Return what `work` answers, or answered to an equal POST before, and whether it is old.

    `work` and what it answers are committed together. Raises what it raises, KeyInFlightError,
    KeyReusedError, DatabaseUnavailableError; then nothing is saved.
    """
    claim = repeats.claim(body_sha256, services.keys.now_s)
    answer, is_old = await services.database.run_for(
        repeats.principal.tenant_id, idempotency.answer_once, claim, work
    )
    if is_old and claim is not None:
        metrics.REPLAYED.labels(claim.scope.value).inc()
    return answer, is_old


async def execute_once_holding_key(
    repeats: IdempotencyContext,
    services: Services,
    body_sha256: bytes,
    begin: Callable[[sa.Connection], UUID],
    finish: Callable[[UUID], Awaitable[Answer]],
) -> tuple[Answer, bool]:
    """As `execute_once`, for work that outlasts its transaction: `finish` answers what has begun.

    `begin` and the key, which is held for HELD_S at most, are committed together.
    """
    claim = repeats.claim(body_sha256, services.keys.now_s)
    tenant_id, run_for = repeats.principal.tenant_id, services.database.run_for
    if claim is None:
        return await finish(await run_for(tenant_id, begin)), False

    def held(connection: sa.Connection) -> Answer | UUID:
        old = idempotency.look(connection, claim)
        if old is not None:
            return old
        begun = begin(connection)
        idempotency.hold(connection, claim, until_s=HELD_S)
        return begun

    begun = await run_for(tenant_id, held)
    if isinstance(begun, Answer):
        metrics.REPLAYED.labels(claim.scope.value).inc()
        return begun, True
    is_saved = False
    try:
        answer = await finish(begun)
        is_saved = await run_for(tenant_id, idempotency.save_held, claim, answer)
    finally:
        if not is_saved:
            with suppress(DatabaseUnavailableError):  # then the key is free after its time
                await run_for(tenant_id, idempotency.let_go, claim)
    return answer, False


async def find_saved_answer(
    repeats: IdempotencyContext, services: Services, body_sha256: bytes
) -> Answer | None:
    """Return what was answered to an equal POST before.

    For routes that check much before they work: a check may end otherwise the second time. Raises
    KeyInFlightError, KeyReusedError, DatabaseUnavailableError.
    """
    claim = repeats.claim(body_sha256, services.keys.now_s)
    if claim is None:
        return None
    answer = await services.database.run_for(claim.tenant_id, idempotency.look, claim)
    if answer is not None:
        metrics.REPLAYED.labels(claim.scope.value).inc()
    return answer


async def may_have_saved_answer(repeats: IdempotencyContext, services: Services) -> bool:
    """Whether a body that was not read yet may be one that was answered already."""
    claim = repeats.claim(b"", services.keys.now_s)
    if claim is None or not claim.may_repeat:
        return False
    return await services.database.run_for(claim.tenant_id, idempotency.may_be_known, claim)


def saved_response(answer: Answer, *, is_old: bool) -> Response:
    """Return an answer in JSON; one that is given again says so."""
    headers = dict((REPLAYED,)) if is_old else {}
    return Response(answer.body, answer.status_code, headers, media_type="application/json")
