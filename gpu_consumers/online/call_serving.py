"""One online call at the engine: its body goes in, its pieces come out as they are said."""

import asyncio

import msgspec

from core.clock import Clock
from core.errors import Disposition, MillraceError, PoolUnavailableError
from gpu_consumers import metrics
from gpu_consumers.engines.engine import EmitEvent, Engine, EngineAnswer
from gpu_consumers.engines.error_answers import is_transient
from gpu_consumers.flow_control.pool_health import PoolHealth
from gpu_consumers.inflight.online_call import Cut, OnlineCall
from gpu_consumers.inflight.outcomes import INPUT_MISSING
from gpu_consumers.inflight.replies import PIECE_BYTES_MAX
from gpu_consumers.online.call_answers import FIRST_ERROR_STATUS
from gpu_consumers.payloads.bodies import load_body
from gpu_consumers.payloads.encrypted_bodies import BODY_UNREADABLE, EncryptedBodies
from storage.crypto.body_ciphers import Place, Way
from storage.objects.object_store import ObjectStore


class CallServing:
    """Asks the engine; used on the event loop."""

    def __init__(
        self, engine: Engine, objects: ObjectStore, pool: PoolHealth, clock: Clock
    ) -> None:
        """Know no key yet. `pool` is told when the engine answers."""
        self._engine, self._objects, self._pool, self._clock = engine, objects, pool, clock
        self._encrypted = EncryptedBodies(objects, clock)

    async def body(self, call: OnlineCall) -> bytes | EngineAnswer:
        """Return what to ask, or the answer of a request whose object is not what was stored.

        Raises PoolUnavailableError: the object store is part of the pool.
        """
        if not (call.item.length or call.job.key_name):
            return call.item.body
        try:
            if call.job.key_name:
                return await self._encrypted.open_call(call)
            return await asyncio.to_thread(load_body, self._objects, call.job, call.item)
        except MillraceError as failure:
            if failure.disposition is Disposition.REJECT:
                return BODY_UNREADABLE if call.job.key_name else INPUT_MISSING
            if failure.disposition is Disposition.CRASH:
                raise
            raise PoolUnavailableError(failure.code) from None

    async def serve(self, call: OnlineCall, body: bytes) -> EngineAnswer:
        """Return the engine's answer; cancelling aborts it. Raises what `Engine.serve` raises."""
        began_s = self._clock.monotonic_s()
        try:
            emit = self._emit(call) if call.is_stream else None
            answer = await self._engine.serve(call.job.endpoint, body, emit, call.meter)
        finally:
            call.execution_s = self._clock.monotonic_s() - began_s
        if not is_transient(answer):  # such a failure may well be the pool's
            self._pool.answered()
        if answer.body and answer.status_code < FIRST_ERROR_STATUS:
            return msgspec.structs.replace(answer, body=call.stamp(answer.body))
        return answer

    def _emit(self, call: OnlineCall) -> EmitEvent:
        stamp = call.stamp

        def emit(said: bytes) -> None:
            if call.cut is not None:
                return
            piece = stamp(said)
            if call.cipher is not None:
                place = Place(call.request_id, Way.OUT, call.piece_count)
                piece = call.cipher.encrypt(piece, place)
            if len(piece) > PIECE_BYTES_MAX:
                call.stop(Cut.PIECE_TOO_LARGE)
                return
            if not call.piece_count:
                metrics.FIRST_PIECE_SECONDS.observe(self._clock.monotonic_s() - call.arrived_s)
            call.piece_count += 1
            call.replies.piece(piece)
            if call.is_durable:
                call.kept.append(piece)

        return emit
