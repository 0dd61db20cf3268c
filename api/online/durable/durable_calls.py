"""Durable calls: committed to Postgres before they are sent, so that they outlive the connection.

    store the line ─► [one transaction: idempotency key, job] ─► (the pipeline sends the record)

The results writer stores the reply in the item's row, whatever happens to this process. The key of
a durable call refers to its job, so the API stores no response under the key itself.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import replace
from typing import Final
from uuid import UUID

import msgspec
import sqlalchemy as sa

from api import metrics
from api.http.errors import ApiError
from api.idempotent_requests import REPLAYED, ReplayWaiter, idempotency_from_headers
from api.online.call_request import preferred_wait_s
from api.online.calls import ParsedCall, PlannedCall, PreparedCall, call_deadline
from api.online.durable.durable_streams import StreamRecording
from api.online.exchange import CompleteResponse, Exchange
from api.online.memory_limits import MemoryLimit
from api.runtime.api_services import Services
from api.runtime.database import DatabaseUnavailableError
from api.runtime.object_threads import ObjectDeletions, run_in_store_thread
from core.clock import Clock
from core.errors import MillraceError
from core.ids import REQUEST, SINGLE, public_id
from core.states import JobState
from jobs.store import idempotency
from jobs.store.days import job_day
from jobs.store.idempotency import IdempotencyClaim, StoredAnswer, replayed_headers
from jobs.store.single_requests import (
    NewRequest,
    create_request,
    expire_request,
    input_line,
    request_input_key,
)
from storage.objects.errors import ObjectNotFoundError
from storage.objects.object_store import read_object, write_object
from tenancy.api_keys import Principal
from topics.records.records import JobRef

_LOG = logging.getLogger(__name__)

_EXPIRE_S_MAX: Final = 1.0  # the client has waited for its whole queue timeout already
_JSON: Final = ("content-type", "application/json")


class DurableCalls:
    """Commits, expires and accepts durable calls: jobs of kind `request`."""

    def __init__(self, services: Services, clock: Clock, recordings: MemoryLimit) -> None:
        """`recordings` limits the memory for recordings of streams."""
        self._services, self._clock, self._recordings = services, clock, recordings
        self._objects, self._public_url = services.objects, services.settings.public_url
        self._deletions = ObjectDeletions(services.objects)
        self._replays = ReplayWaiter(
            services.database, clock, wait_s_max=services.settings.replay_wait_s
        )
        self._tasks: set[asyncio.Task[None]] = set()

    async def prepare(
        self, call: PlannedCall, exchange: Exchange, refused: ApiError | None
    ) -> PreparedCall:
        """Commit a call before its record is produced, or find the saved answer to its key.

        All within the deadline of the call. `refused` is raised for a call that the load does not
        admit, unless a saved answer exists or the key is in flight.

        Raises ApiError, IdempotencyKeyInFlightError, IdempotencyKeyReusedError,
        DatabaseUnavailableError, and the errors of the object store.
        """
        parsed = call.parsed
        if parsed.stream and parsed.background:
            raise ApiError(
                400, "A call in the background does not stream.", code="stream_not_supported"
            )
        claim = self._claim(call.principal, parsed, exchange)
        async with call_deadline(call, self._clock):
            if parsed.stream:
                assert claim is not None  # only a stream with a key is prepared here
                return await self._prepare_stream(call, claim, refused)
            if refused is not None:
                replay = None if claim is None else await self._find_replay(claim)
                if replay is None:
                    raise refused
                return replay
            wait_s = preferred_wait_s(exchange.headers)
            if wait_s is not None:
                wait_s = min(wait_s, self._services.settings.wait_s_max)
            return await self._prepare_request(call, claim, wait_s)

    async def expire(self, call: PlannedCall) -> None:
        """Close the job of a committed call that nobody will execute; this frees its key.

        When Postgres does not answer soon, the job ends at its own deadline.
        """
        tenant_id = call.principal.tenant_id
        with suppress(DatabaseUnavailableError, TimeoutError):
            async with asyncio.timeout(_EXPIRE_S_MAX):
                await self._services.database.run_for_tenant(
                    tenant_id, expire_request, tenant_id, call.request_id
                )

    def accept(self, call: PlannedCall, claim: IdempotencyClaim | None) -> CompleteResponse:
        """Return the 202 of a committed call, and save it as the answer to its key."""
        answer = _accepted_answer(call.request_id, self._public_url)
        if claim is not None:
            task = asyncio.ensure_future(self._save(claim, _with_version(answer, call.job)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return _to_response(answer, is_replay=False)

    def _claim(
        self, principal: Principal, parsed: ParsedCall, exchange: Exchange
    ) -> IdempotencyClaim | None:
        """Return the claim of a call. Only in the background are retries without a key known."""
        context = idempotency_from_headers(
            exchange.headers,
            principal,
            f"POST {parsed.endpoint}",
            settings=self._services.settings,
            arrived_s=exchange.arrived_s,
        )
        if context.key is None and not parsed.background:
            return None
        return context.claim(_body_sha256(parsed), self._clock.monotonic_s)

    async def _find_replay(self, claim: IdempotencyClaim) -> PreparedCall | None:
        """Return the saved answer to a claim.

        Raises IdempotencyKeyInFlightError, IdempotencyKeyReusedError.
        """
        database = self._services.database
        answer = await self._replays.retry_until_free(
            lambda: database.run_for_tenant(claim.tenant_id, idempotency.find_answer, claim)
        )
        return None if answer is None else await self._replay(answer, claim)

    async def _replay(self, answer: StoredAnswer, claim: IdempotencyClaim) -> PreparedCall:
        """Return the saved answer to a claim, as it is sent again.

        Raises ApiError (410) when its body is deleted, and the errors of the object store.
        """
        metrics.REPLAYED.labels(claim.scope.value).inc()
        if answer.body_key is not None:
            try:
                body = await run_in_store_thread(read_object, self._objects, answer.body_key)
            except ObjectNotFoundError:
                raise ApiError(410, "The stored answer is deleted.", code="answer_gone") from None
            answer = StoredAnswer(answer.status_code, body, answer.headers)
        return PreparedCall(None, answer=_to_response(answer, is_replay=True))

    async def _prepare_request(
        self, call: PlannedCall, claim: IdempotencyClaim | None, wait_s: float | None
    ) -> PreparedCall:
        """Look for a replay, which needs no store; then store the line and commit the job."""
        if claim is not None and claim.may_repeat and (replay := await self._find_replay(claim)):
            return replay
        line = input_line(
            public_id(REQUEST, call.request_id), call.parsed.endpoint, call.parsed.body
        )
        objects, database = self._objects, self._services.database
        # A line written after the deadline is swept, like that of any call without a commit.
        await run_in_store_thread(write_object, objects, request_input_key(call.request_id), line)
        new = _new_request(call, len(line), now_s=self._clock.monotonic_s())
        accepted = saved = None
        if call.parsed.background:
            accepted = _accepted_answer(new.job_id, self._public_url)
            saved = _with_version(accepted, call.job)
        try:
            committed = await self._replays.retry_until_free(
                lambda: database.run_for_tenant(new.tenant_id, commit_request, new, claim, saved)
            )
        except (ApiError, MillraceError) as error:
            # A commit whose answer was lost may have succeeded, and then needs its line.
            if not isinstance(error, DatabaseUnavailableError):
                self._deletions.start(new.input_key)
            raise
        if isinstance(committed, StoredAnswer):
            self._deletions.start(new.input_key)
            assert claim is not None  # without a key there is no saved answer
            return await self._replay(committed, claim)
        job = msgspec.structs.replace(call.job, day=committed, input_key=new.input_key)
        if accepted is not None:
            response = _to_response(accepted, is_replay=False)
            return PreparedCall(job, response, line_bytes=len(line))
        applied = () if wait_s is None else ((b"preference-applied", b"wait=%d" % wait_s),)
        return PreparedCall(job, wait_s=wait_s, line_bytes=len(line), headers=applied, claim=claim)

    async def _prepare_stream(
        self, call: PlannedCall, claim: IdempotencyClaim, refused: ApiError | None
    ) -> PreparedCall:
        services = self._services

        def hold() -> Awaitable[StoredAnswer | None]:
            left_s = call.left_s(call.timeout_s, now_s=self._clock.monotonic_s())
            return services.database.run_for_tenant(
                claim.tenant_id, hold_stream_key, claim, left_s, refused
            )

        answer = await self._replays.retry_until_settled(hold)
        if answer is not None:
            return await self._replay(answer, claim)
        return PreparedCall(call.job, recording=StreamRecording(services, claim, self._recordings))

    async def _save(self, claim: IdempotencyClaim, answer: StoredAnswer) -> None:
        """Save the answer to a key. A key without it refers to its job, which serves as well."""
        try:
            await self._services.database.run_for_tenant(
                claim.tenant_id, idempotency.complete_in_flight, claim, answer
            )
        except DatabaseUnavailableError:
            _LOG.warning("the answer to a key was not saved")


def commit_request(
    connection: sa.Connection,
    new: NewRequest,
    claim: IdempotencyClaim | None,
    accepted: StoredAnswer | None,
) -> int | StoredAnswer:
    """Create the job of a call; return its day, or the saved answer to its key.

    `accepted` is saved as the answer to the key. Without it the key refers to the job. Raises
    IdempotencyKeyInFlightError, IdempotencyKeyReusedError.
    """
    answer = None if claim is None else idempotency.find_answer(connection, claim)
    if answer is not None:
        return answer
    created_at = create_request(connection, new)
    if claim is not None and accepted is not None:
        idempotency.save_answer(connection, claim, accepted, job_id=new.job_id)
    elif claim is not None:
        idempotency.mark_in_flight(connection, claim, until_s=new.timeout_s, job_id=new.job_id)
    return job_day(created_at)


def hold_stream_key(
    connection: sa.Connection, claim: IdempotencyClaim, timeout_s: float, refused: ApiError | None
) -> StoredAnswer | None:
    """Hold the key of a stream, or return the saved stream.

    Raises `refused` when there is no saved stream, IdempotencyKeyInFlightError,
    IdempotencyKeyReusedError.
    """
    answer = idempotency.find_answer(connection, claim)
    if answer is not None:
        return answer
    if refused is not None:
        raise refused
    idempotency.mark_in_flight(connection, claim, until_s=timeout_s)
    return None


def _accepted_answer(job_id: UUID, public_url: str | None) -> StoredAnswer:
    """Return the 202 of a committed call, which refers to the job."""
    name = public_id(SINGLE, job_id)
    location = f"{(public_url or '').rstrip('/')}/v1/jobs/{name}"
    status = JobState.IN_PROGRESS.value
    body = msgspec.json.encode({"id": name, "object": "job", "status": status})
    return StoredAnswer(202, body, (_JSON, ("location", location)))


def _with_version(answer: StoredAnswer, job: JobRef) -> StoredAnswer:
    """Add the model version, so that a replay names the one that accepted the call."""
    described = replayed_headers(job.model, job.model_version, job.degraded)
    return replace(answer, headers=(*answer.headers, *described))


def _to_response(answer: StoredAnswer, *, is_replay: bool) -> CompleteResponse:
    pairs = [*answer.headers, REPLAYED] if is_replay else [*answer.headers]
    headers = [(name.encode(), value.encode()) for name, value in pairs]
    return CompleteResponse(answer.status_code, answer.body, headers)


def _new_request(call: PlannedCall, input_bytes: int, *, now_s: float) -> NewRequest:
    """Return the job of a call. Its time limit counts from the arrival of the body."""
    job = call.job
    return NewRequest(
        job_id=job.job_id,
        tenant_id=job.tenant_id,
        endpoint=job.endpoint,
        model=job.model,
        model_version=job.model_version,
        base_version=job.base_version,
        pool=job.pool,
        input_key=request_input_key(job.job_id),
        input_bytes=input_bytes,
        timeout_s=call.left_s(call.timeout_s, now_s=now_s),
        traceparent=job.traceparent,
        degraded=job.degraded or None,
    )


def _body_sha256(parsed: ParsedCall) -> bytes:
    """Hash a call as its client sent it, including the fields that were removed from the body."""
    fields: tuple[object, ...] = (parsed.timeout_s, parsed.background, parsed.stream)
    if parsed.queue_timeout_s is not None:  # keeps the hashes of calls without it stable
        fields += (parsed.queue_timeout_s,)
    own_fields = msgspec.json.encode(fields)
    body = parsed.client_body or parsed.body  # a retry may be degraded in another way
    return hashlib.sha256(own_fields + b"\0" + body).digest()
