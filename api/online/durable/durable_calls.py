"""Calls that outlive their connection: committed before they are sent, found again by their id.

    store the line ─► [one transaction: key, job] ─► (the caller sends the record)

The answer reaches Postgres by way of the results writer, whatever happens to this process. A key of
such a call stands for its job, so nothing is saved when the answer comes: it is in the item's row.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from api.http.responses import ApiError
from api.idempotency.idempotent_requests import IdempotencyContext, idempotency_from_headers
from api.idempotency.replay_waiter import ReplayWaiter
from api.online.admit.recording_room import RecordingRoom
from api.online.await_reply.deadlines import call_deadline
from api.online.calls import CompleteResponse, ParsedCall, PlannedCall, PreparedCall
from api.online.durable.durable_answers import accepted_answer, finished, given_again, to_keep
from api.online.durable.durable_streams import StreamRecording
from api.online.durable.durable_transactions import commit_request, hold_stream
from api.online.receive.exchange import Exchange
from api.online.receive.preferences import preferred_wait_s
from api.online.send.store_threads import ObjectDeletions, run_in_store_thread
from api.runtime.database import DatabaseUnavailableError
from api.runtime.services import Services
from core.clock import Clock
from core.errors import MillraceError
from core.ids import REQUEST, public_id
from jobs.store import idempotency
from jobs.store.idempotency import Answer, Claim
from jobs.store.single_requests import NewRequest, expire_request, input_line, request_input_key
from storage.objects.whole_objects import write_object
from tenancy.api_keys import Principal
from topics.records.records import JobRef

_LOG = logging.getLogger(__name__)

_EXPIRE_S_MAX: Final = 1.0  # its client has waited long enough


class DurableCalls:
    """Jobs of kind `request`."""

    def __init__(self, services: Services, clock: Clock, recordings: RecordingRoom) -> None:
        """Hold nothing yet."""
        self._services, self._clock, self._recordings = services, clock, recordings
        self._objects, self._public_url = services.objects, services.settings.public_url
        self._drops = ObjectDeletions(services.objects)
        self._replays = ReplayWaiter(
            services.database, clock, wait_s_max=services.settings.replay_wait_s
        )
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(
        self, call: PlannedCall, exchange: Exchange, refused: ApiError | None
    ) -> PreparedCall:
        """Commit a call before it is produced, or find what was answered to it before.

        All within its deadline; a commit that comes later has the little time that was left, and
        so has its key. `refused` says why there is no room for it; what was answered before needs
        none. Raises it for a call that is neither answered nor in flight, ApiError,
        KeyInFlightError, KeyReusedError, DatabaseUnavailableError, and what a store raises.
        """
        parsed = call.parsed
        if parsed.stream and parsed.background:
            raise ApiError(
                400, "A call in the background does not stream.", code="stream_not_supported"
            )
        claim = self._claim(call.principal, parsed, exchange)
        async with call_deadline(call, self._clock):
            if parsed.stream:
                assert claim is not None  # else it is no call of ours
                return await self._begin_stream(call, claim, refused)
            if refused is not None:
                return await self._only_again(claim, refused)
            wait_s = _wait_s(exchange.headers, self._services)
            return await self._begin_request(call, claim, wait_s)

    async def expire(self, call: PlannedCall) -> None:
        """End a committed call that nobody will begin, and with it what its key stands for.

        Where Postgres does not answer soon it ends at its own deadline.
        """
        tenant_id = call.principal.tenant_id
        with suppress(DatabaseUnavailableError, TimeoutError):
            async with asyncio.timeout(_EXPIRE_S_MAX):
                await self._services.database.run_for(
                    tenant_id, expire_request, tenant_id, call.request_id
                )

    def accepted(self, call: PlannedCall, claim: Claim | None) -> CompleteResponse:
        """Return the 202 of a committed call; the answer to its claim from now on."""
        answer = accepted_answer(call.request_id, self._public_url)
        if claim is not None:
            task = asyncio.ensure_future(self._save(claim, to_keep(answer, call.job)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return finished(answer, is_old=False)

    def _claim(self, principal: Principal, parsed: ParsedCall, exchange: Exchange) -> Claim | None:
        """Retries without a key are known in the background only: others hold a connection."""
        repeats: IdempotencyContext = idempotency_from_headers(
            exchange.headers,
            principal,
            f"POST {parsed.endpoint}",
            settings=self._services.settings,
            arrived_s=exchange.arrived_s,
        )
        if repeats.key is None and not parsed.background:
            return None
        return repeats.claim(_body_sha256(parsed), self._clock.monotonic_s)

    async def _only_again(self, claim: Claim | None, refused: ApiError) -> PreparedCall:
        """Answer a call that there is no room for, if it was answered before."""
        again = None if claim is None else await self._again(claim)
        if again is None:
            raise refused
        return again

    async def _again(self, claim: Claim) -> PreparedCall | None:
        """Return what was answered before to a claim. Raises KeyInFlightError, KeyReusedError."""
        database = self._services.database
        answer = await self._replays.until_free(
            lambda: database.run_for(claim.tenant_id, idempotency.look, claim)
        )
        if answer is None:
            return None
        return PreparedCall(None, answer=await given_again(answer, claim.scope, self._objects))

    async def _begin_request(
        self, call: PlannedCall, claim: Claim | None, wait_s: float | None
    ) -> PreparedCall:
        """Look for an answer first where there may be one: it needs no store that takes a line."""
        if claim is not None and claim.may_repeat and (again := await self._again(claim)):
            return again
        line = input_line(
            public_id(REQUEST, call.request_id), call.parsed.endpoint, call.parsed.body
        )
        objects, database = self._objects, self._services.database
        # What is written too late is swept, as of any call that was not committed.
        await run_in_store_thread(write_object, objects, request_input_key(call.request_id), line)
        new = _new_request(call, len(line), now_s=self._clock.monotonic_s())
        accepted = accepted_answer(new.job_id, self._public_url) if call.parsed.background else None
        kept = None if accepted is None else to_keep(accepted, call.job)
        try:
            begun = await self._replays.until_free(
                lambda: database.run_for(new.tenant_id, commit_request, new, claim, kept)
            )
        except (ApiError, MillraceError) as error:
            # Of a commit whose answer was lost, the line may be wanted.
            if not isinstance(error, DatabaseUnavailableError):
                self._drops.begin(new.input_key)
            raise
        if isinstance(begun, Answer):
            self._drops.begin(new.input_key)
            assert claim is not None  # or nothing was answered before
            return PreparedCall(None, answer=await given_again(begun, claim.scope, objects))
        job = msgspec.structs.replace(call.job, day=begun, input_key=new.input_key)
        if accepted is not None:
            return PreparedCall(job, finished(accepted, is_old=False), line_bytes=len(line))
        applied = () if wait_s is None else ((b"preference-applied", b"wait=%d" % wait_s),)
        return PreparedCall(job, wait_s=wait_s, line_bytes=len(line), headers=applied, claim=claim)

    async def _begin_stream(
        self, call: PlannedCall, claim: Claim, refused: ApiError | None
    ) -> PreparedCall:
        services = self._services

        def hold() -> Awaitable[Answer | None]:
            left_s = call.left_s(call.timeout_s, now_s=self._clock.monotonic_s())
            tenant_id = claim.tenant_id
            return services.database.run_for(tenant_id, hold_stream, claim, left_s, refused)

        answer = await self._replays.until_settled(hold)
        if answer is not None:
            return PreparedCall(None, answer=await given_again(answer, claim.scope, self._objects))
        return PreparedCall(call.job, recording=StreamRecording(services, claim, self._recordings))

    async def _save(self, claim: Claim, answer: Answer) -> None:
        """A key that is not saved stands for the answer of its job, which is no worse."""
        try:
            await self._services.database.run_for(
                claim.tenant_id, idempotency.save_held, claim, answer
            )
        except DatabaseUnavailableError:
            _LOG.warning("the answer to a key was not saved")


def _new_request(call: PlannedCall, input_bytes: int, *, now_s: float) -> NewRequest:
    """Return the job of a call, which ends with it: its time runs since its body is here."""
    job: JobRef = call.job
    return NewRequest(
        job_id=job.job_id,
        tenant_id=job.tenant_id,
        endpoint=job.endpoint,
        model=job.model,
        model_version=job.model_version,
        pool=job.pool,
        input_key=request_input_key(job.job_id),
        input_bytes=input_bytes,
        timeout_s=call.left_s(call.timeout_s, now_s=now_s),
        traceparent=job.traceparent,
    )


def _wait_s(headers: Mapping[bytes, bytes], services: Services) -> float | None:
    wished_s = preferred_wait_s(headers)
    return None if wished_s is None else min(wished_s, services.settings.wait_s_max)


def _body_sha256(parsed: ParsedCall) -> bytes:
    """Hash a call as its client sent it: the fields that are ours were taken out of its body."""
    fields: tuple[object, ...] = (parsed.timeout_s, parsed.background, parsed.stream)
    if parsed.queue_timeout_s is not None:  # hashes of other calls are what they always were
        fields += (parsed.queue_timeout_s,)
    ours = msgspec.json.encode(fields)
    return hashlib.sha256(ours + b"\0" + parsed.body).digest()
