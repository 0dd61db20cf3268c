"""Idempotent POST requests: those with an Idempotency-Key, and retries after a lost response.

Official clients retry a POST whose response was lost, without a key but with a retry count. So the
response is saved for a while under what a retry has in common with the first attempt.
"""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Concatenate, Final, ParamSpec, Self, TypeAlias, TypeVar
from uuid import UUID

import msgspec
import sqlalchemy as sa
from fastapi import Depends, Request, Response

from api import metrics
from api.auth.authentication import TenantRequest, TenantRequestDep
from api.http.errors import ApiError
from api.http.request_bodies import body_sha256, json_body
from api.runtime.api_services import Services
from api.runtime.database import Database, DatabaseUnavailableError
from api.settings import ApiSettings
from api.views.progress_poller import ProgressPoller, ProgressSnapshot
from core.clock import Clock
from jobs.errors import IdempotencyKeyInFlightError, IdempotencyKeyReusedError
from jobs.store import idempotency
from jobs.store.idempotency import KEY_CHARS_MAX, IdempotencyClaim, KeyScope, StoredAnswer
from tenancy.api_keys import Principal
from tenancy.operator_keys import OperatorPrincipal

P = ParamSpec("P")
T = TypeVar("T")

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

    principal: Principal | OperatorPrincipal
    route: str  # method and path
    arrived_s: float  # monotonic
    key: str | None  # sent by the client
    prior_attempts: int | None  # None: the client sends no retry count, or opts out
    settings: ApiSettings = field(repr=False)

    def claim(self, body_sha256: bytes, now_s: Callable[[], float]) -> IdempotencyClaim | None:
        """Return the claim to look up and to save, or None when every such POST is new."""
        if self.key is not None:
            scope, key, keep_s = KeyScope.CLIENT, self.key, self.settings.idempotency_keep_s
        elif self.prior_attempts is not None:
            parts = (self.principal.key_id.bytes, self.route.encode(), body_sha256)
            key = hashlib.sha256(b"\0".join(parts)).hexdigest()
            scope, keep_s = KeyScope.RETRY, self.settings.retry_protection_s
        else:
            return None
        return IdempotencyClaim(
            tenant_id=self.principal.idempotency_owner,
            scope=scope,
            key=key,
            route=self.route,
            body_sha256=body_sha256,
            keep_s=keep_s,
            attempt=self.prior_attempts or 0,
            age_s=lambda: max(0.0, now_s() - self.arrived_s),
        )

    def for_client_key_only(self) -> "IdempotencyContext":
        """Return the context of a repeatable action: only a key of the client marks a retry."""
        return replace(self, prior_attempts=None)


def idempotency_from_headers(
    headers: Mapping[bytes, bytes],
    principal: Principal | OperatorPrincipal,
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


def idempotency_of_route(
    request: Request, principal: Principal | OperatorPrincipal, services: Services
) -> IdempotencyContext:
    """Read the headers of a POST to a route of FastAPI. Raises ApiError (400)."""
    return idempotency_from_headers(
        dict(request.scope["headers"]),
        principal,
        f"{request.method} {request.url.path}",
        settings=services.settings,
        arrived_s=services.keys.now_s(),
    )


@dataclass(frozen=True, slots=True)
class IdempotentRequest(TenantRequest):
    """A POST request that takes effect once, however often its client sends it.

    Routes get it as `IdempotentRequestDep`. Methods that use Postgres raise
    DatabaseUnavailableError.
    """

    context: IdempotencyContext

    def for_client_key_only(self) -> Self:
        """Return the request of a repeatable action: only a key of the client marks a retry."""
        return replace(self, context=self.context.for_client_key_only())

    async def json_body(self, shape: type[T]) -> T:
        """Return the body as `shape`. Raises ApiError: 400, 408, 413 or 415."""
        return await json_body(self.http, shape, self.services.settings)

    async def answer_once(self, work: Callable[[sa.Connection], object]) -> Response:
        """Answer with the JSON of what `work` returns; see `execute_once`."""
        answer, is_replay = await self.execute_once(work)
        return saved_response(answer, is_replay=is_replay)

    async def execute_once(
        self, work: Callable[[sa.Connection], object], *, sha256: bytes | None = None
    ) -> tuple[StoredAnswer, bool]:
        """Return what `work` returns as JSON and False, or the saved answer to an equal POST.

        The second value tells whether the answer is a replay. The effect of `work` and its answer
        are committed together. `sha256` stands for the body; by default that of the JSON body.
        Raises what `work` raises, IdempotencyKeyInFlightError, IdempotencyKeyReusedError; then
        nothing is saved.
        """
        return await execute_claimed(self._run, self._claim(sha256), work)

    async def answer_once_holding_key(
        self, begin: Callable[[sa.Connection], UUID], finish: Callable[[UUID], Awaitable[object]]
    ) -> Response:
        """Like `answer_once`, for work that outlasts its transaction and that `finish` answers.

        The effect of `begin` and the key, held for at most KEY_HELD_S, are committed together.
        """
        claim = self._claim()

        def begin_and_hold(connection: sa.Connection) -> StoredAnswer | UUID:
            saved = None if claim is None else idempotency.find_answer(connection, claim)
            if saved is not None:
                return saved
            started = begin(connection)
            if claim is not None:
                idempotency.mark_in_flight(connection, claim, until_s=KEY_HELD_S)
            return started

        started = await self._run(begin_and_hold)
        if isinstance(started, StoredAnswer):
            assert claim is not None  # without a key nothing is saved
            metrics.REPLAYED.labels(claim.scope.value).inc()
            return saved_response(started, is_replay=True)
        is_saved = claim is None
        try:
            answer = StoredAnswer(200, msgspec.json.encode(await finish(started)))
            if claim is not None:
                is_saved = await self._run(idempotency.complete_in_flight, claim, answer)
        finally:
            if claim is not None and not is_saved:
                with suppress(DatabaseUnavailableError):  # then the key is free after KEY_HELD_S
                    await self._run(idempotency.release_key, claim)
        return saved_response(answer, is_replay=False)

    async def find_saved_answer(self) -> StoredAnswer | None:
        """Return the saved answer to an equal POST.

        For routes that check a request before they execute it: a check may fail the second time.
        Raises IdempotencyKeyInFlightError, IdempotencyKeyReusedError.
        """
        claim = self._claim()
        if claim is None:
            return None
        answer = await self._run(idempotency.find_answer, claim)
        if answer is not None:
            metrics.REPLAYED.labels(claim.scope.value).inc()
        return answer

    async def may_have_saved_answer(self) -> bool:
        """Whether a request whose body is not read yet may have a saved answer."""
        claim = self._claim(b"")
        if claim is None or not claim.may_repeat:
            return False
        return await self._run(idempotency.may_have_answer, claim)

    def _claim(self, sha256: bytes | None = None) -> IdempotencyClaim | None:
        sha256 = body_sha256(self.http) if sha256 is None else sha256
        return self.context.claim(sha256, self.services.keys.now_s)

    async def _run(
        self, work: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self.services.database.run_for_tenant(self.tenant_id, work, *args, **kwargs)


async def execute_claimed(
    run: Callable[..., Awaitable[tuple[StoredAnswer, bool]]],
    claim: IdempotencyClaim | None,
    work: Callable[[sa.Connection], object],
) -> tuple[StoredAnswer, bool]:
    """Execute `work` once per claim, in the transaction of `run`, and count a replay.

    See `IdempotentRequest.execute_once`.
    """

    def answer_work(connection: sa.Connection) -> StoredAnswer:
        return StoredAnswer(200, msgspec.json.encode(work(connection)))

    answer, is_replay = await run(idempotency.answer_once, claim, answer_work)
    if is_replay and claim is not None:
        metrics.REPLAYED.labels(claim.scope.value).inc()
    return answer, is_replay


def saved_response(answer: StoredAnswer, *, is_replay: bool) -> Response:
    """Return an answer as JSON; a replay has a header that says so."""
    headers = dict((REPLAYED,)) if is_replay else {}
    return Response(answer.body, answer.status_code, headers, media_type="application/json")


async def _idempotent_request(request: TenantRequestDep) -> IdempotentRequest:
    """Read the idempotency headers, before the body is read. Raises ApiError (400)."""
    http, services = request.http, request.services
    context = idempotency_of_route(http, request.principal, services)
    return IdempotentRequest(http, request.principal, services, context)


IdempotentRequestDep = Annotated[IdempotentRequest, Depends(_idempotent_request)]


Refusal: TypeAlias = IdempotencyKeyInFlightError | IdempotencyKeyReusedError

WAITING_MAX: Final = 1000
"""Waiting retries in this process; further ones are refused at once."""

_POLL_S: Final = 0.05  # one query for all waiting retries
_RUNNING: Final = ProgressSnapshot(0, is_terminal=False)


class ReplayWaiter:
    """Retries an operation whose idempotency key is in use, for a short time.

    A response reaches the client before its row is written. In that moment a retry would be refused
    because its key is in use, and a corrected request because its key belongs to another one. Both
    wait for the row instead, but not for long: the duplicate of a running call must not hold a
    connection.
    """

    def __init__(self, database: Database, clock: Clock, *, wait_s_max: float) -> None:
        self._clock, self._wait_s_max = clock, wait_s_max
        self._progress_poller = ProgressPoller(
            database, interval_s=_POLL_S, report_count=metrics.REPLAYS_WAITING.set
        )
        self._count = 0

    async def retry_until_free(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return what `attempt` returns once its key is neither locked nor held by a running call.

        Raises the last refusal after `wait_s_max`, and every other error of `attempt` at once.
        """
        return await self._retry(attempt, _is_temporary)

    async def retry_until_settled(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Like `retry_until_free`, but wait only for keys of durable calls."""
        return await self._retry(attempt, lambda refusal: refusal.job_id is not None)

    async def _retry(
        self, attempt: Callable[[], Awaitable[T]], is_temporary: Callable[[Refusal], bool]
    ) -> T:
        try:
            return await attempt()
        except (IdempotencyKeyInFlightError, IdempotencyKeyReusedError) as first:
            if not is_temporary(first) or self._count >= WAITING_MAX:
                raise
            refusal: Refusal = first
        self._count += 1
        deadline_s = self._clock.monotonic_s() + self._wait_s_max
        try:
            while (left_s := deadline_s - self._clock.monotonic_s()) > 0:
                await self._wait_for_change(refusal, left_s)
                try:
                    return await attempt()
                except (IdempotencyKeyInFlightError, IdempotencyKeyReusedError) as latest:
                    if not is_temporary(latest):
                        raise
                    refusal = latest
            raise refusal
        finally:
            self._count -= 1

    async def _wait_for_change(self, refusal: Refusal, left_s: float) -> None:
        """Wait for the row of a call, or for the transaction that locks the key."""
        if refusal.job_id is None:
            await asyncio.sleep(min(_POLL_S, left_s))
            return
        with self._progress_poller.subscribe(refusal.job_id, _RUNNING) as subscription:
            await subscription.wait_for_change(left_s)


def _is_temporary(refusal: Refusal) -> bool:
    return isinstance(refusal, IdempotencyKeyInFlightError) or refusal.job_id is not None
