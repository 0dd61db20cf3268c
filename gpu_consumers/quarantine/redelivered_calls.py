"""Redelivered online calls: their callers permit a rerun, and a poison call fails in the end.

Callers wait, so redelivered calls first run together. A call with two recorded crashes runs while
no other suspect runs. It is charged when its next execution crashes the process and ran alone;
otherwise it has the engine to itself, for a bounded time.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Final
from uuid import UUID

import msgspec

from core.errors import PoolUnavailableError
from gpu_consumers import metrics
from gpu_consumers.inflight.online_call import OnlineCall
from gpu_consumers.quarantine.attempt_log import AttemptLog, AttemptsUnavailableError
from gpu_consumers.quarantine.crash_attribution import CrashAttribution
from gpu_consumers.quarantine.narrowing import narrow_units
from topics.records.attempts import AttemptUnit, BatchAttempt
from topics.records.records import CallRef

PERMISSION_S_MAX: Final = 3.0
"""Time for the caller's permission after the request is acknowledged; then it is sent again."""

REQUESTS_MAX: Final = 3
"""Requests before the call is dropped: its caller is done with it, or cannot be reached."""

SendRequest = Callable[[CallRef, UUID], asyncio.Future[None]]
"""Sends one request for permission; the future is done when it is acknowledged."""


class RerunPermissions:
    """Open requests for permission. Used on the event loop."""

    def __init__(self, send_request: SendRequest) -> None:
        self._send_request = send_request
        self._open: dict[UUID, asyncio.Future[None]] = {}

    async def request_rerun(self, call: CallRef, request_id: UUID) -> bool:
        """Return whether the caller permits to run the request again.

        A request may wait in the producer while its partition has no leader, so its time limit
        starts at its acknowledgement. The task that waits is cancelled when the call is aborted,
        expires, or loses its caller.
        """
        permitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open[request_id] = permitted
        try:
            for _ in range(REQUESTS_MAX):
                sent = self._send_request(call, request_id)
                await asyncio.wait([permitted, sent], return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait([permitted], timeout=PERMISSION_S_MAX)
                if permitted.done():
                    return True
            return False
        finally:
            del self._open[request_id]

    def grant(self, request_ids: Iterable[UUID]) -> None:
        """Apply permissions of a caller; ids without an open request here are ignored."""
        for request_id in request_ids:
            waiting = self._open.get(request_id)
            if waiting is not None and not waiting.done():
                waiting.set_result(None)


_HOSTS_MIN: Final = 2
"""A call that crashed processes on so many hosts is charged at once."""

_SUSPECT_CRASHES = 2
"""From so many crashes on a call runs as a suspect, apart from other suspects."""


class SuspectCalls:
    """Runs redelivered calls and records each of their executions on the `attempts` topic."""

    def __init__(self, log: AttemptLog, attribution: CrashAttribution, *, crashes_max: int) -> None:
        self._log, self._crashes_max = log, crashes_max
        self.attribution, self._host = attribution, attribution.host

    @asynccontextmanager
    async def run_redelivered_call(self, call: OnlineCall) -> AsyncIterator[bool]:
        """Run the block as an execution of the call; it gets False if the call is charged.

        The block must not execute a charged call. The attempt of a charged call stays recorded
        until `delete_charge`: otherwise a crash before the answer would run the call again.
        """
        incarnation, unit, is_poison = await self._crash_history(call)
        if is_poison:
            if len(unit.hosts) < _HOSTS_MIN:
                await self._host.wait_until_proven()
            metrics.ITEMS_CHARGED.labels("crash").inc()
            call.is_charged = True
            yield False
            return
        record_run = partial(self._record_run, call, incarnation, unit)
        is_suspect = unit.crashes >= _SUSPECT_CRASHES
        if unit.forgiven >= self._crashes_max or (is_suspect and self._host.is_failing):
            await self._host.wait_until_proven()
        has_run = False
        while not has_run:
            try:
                async with self._suspect_slot(unit.crashes) if is_suspect else nullcontext():
                    try:
                        async with self.attribution.run_recorded(record_run, is_suspect=is_suspect):
                            has_run = True
                            yield True
                    except PoolUnavailableError:
                        await self._delete_attempt(call)
                        raise
                    except asyncio.CancelledError:
                        if call.abort_reason is not None:  # else the process ends: a crash
                            await self._delete_attempt(call)
                        raise
                    await self._delete_attempt(call)
            except AttemptsUnavailableError:  # the call waits, without the slot
                await self._record_stop(call)

    @asynccontextmanager
    async def _suspect_slot(self, crashes: int) -> AsyncIterator[None]:
        with self.attribution.suspect_present():
            drains_engine = crashes >= self._crashes_max
            await self.attribution.acquire_suspect_slot(drains_engine=drains_engine)
            try:
                yield
            finally:
                self.attribution.release_suspect_slot()

    async def delete_charge(self, call: OnlineCall) -> None:
        """Delete the attempt of a charged call whose end is acknowledged. Raises DeliveryError."""
        if call.is_charged:
            await self._delete_attempt(call)

    async def release_calls(self, calls: Collection[OnlineCall], *, lost: bool) -> None:
        """Leave the attempts of calls to the next owner of their partitions. Raises DeliveryError.

        Records that the calls have not crashed this process. If the partitions are `lost`, their
        new owner may have written already, and nothing is recorded.
        """
        for call in calls:
            call.is_revoked = True
        if not lost:
            recorded = [call.attempt for call in calls if call.attempt is not None]
            stopped = [msgspec.structs.replace(attempt, is_running=False) for attempt in recorded]
            await asyncio.gather(*map(self._log.record_attempt, stopped))

    async def _record_run(
        self, call: OnlineCall, incarnation: int, unit: AttemptUnit, runs_alongside: bool
    ) -> None:
        if not call.is_revoked:
            attempt = BatchAttempt(call.request_id, incarnation, [unit], True, runs_alongside)
            call.attempt = self._host.stamp(attempt)
            if self._log.is_unavailable or not await self._log.record_unless_unavailable(
                call.attempt
            ):
                raise AttemptsUnavailableError

    async def _record_stop(self, call: OnlineCall) -> None:
        """Record that the call does not run; return when the topic has acknowledged it."""
        if call.attempt is not None and not call.is_revoked:
            stopped = msgspec.structs.replace(call.attempt, is_running=False)
            await self._log.record_attempt(stopped)

    async def _delete_attempt(self, call: OnlineCall) -> None:
        """Delete the call's attempt, unless the record belongs to the next owner by now."""
        if not call.is_revoked:
            call.attempt = None
            await self._log.delete_attempt(call.request_id)

    async def _crash_history(self, call: OnlineCall) -> tuple[int, AttemptUnit, bool]:
        """Return this owner's incarnation, the crashes of the call, and whether it is poison."""
        last = await self._log.read_attempt(call.request_id, call.generation)
        if last is None or not last.units:
            return 1, AttemptUnit(0, 1, 1), False  # the first execution is not recorded
        narrowed = narrow_units(
            last,
            crashes_max=self._crashes_max,
            host_id=self._host.host_id,
            verdict=self._host.present_verdict,
        )
        unit = narrowed.charged or narrowed.units[0]
        return last.life + 1, unit, unit.awaits_proof
