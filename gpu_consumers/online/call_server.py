"""Runs one online call on the engine: loads its body and sends the pieces of its stream."""

import asyncio

import msgspec

from core.clock import Clock
from core.errors import Disposition, MillraceError, PoolUnavailableError
from gpu_consumers import metrics
from gpu_consumers.engines.engine import EmitEvent, Engine, EngineAnswer
from gpu_consumers.engines.error_answers import is_transient
from gpu_consumers.flow_control.pool_health import PoolHealth
from gpu_consumers.inflight.item_outcomes import INPUT_MISSING
from gpu_consumers.inflight.online_call import CallAbortReason, OnlineCall
from gpu_consumers.inflight.replies import PIECE_BYTES_MAX
from gpu_consumers.online.call_answers import FIRST_ERROR_STATUS
from gpu_consumers.payloads.bodies import BODY_UNREADABLE, EncryptedBodies, load_body
from storage.crypto.body_ciphers import BodyDirection, CipherContext
from storage.objects.object_store import ObjectStore


class CallServer:
    """Serves calls with the engine. Used on the event loop."""

    def __init__(
        self, engine: Engine, objects: ObjectStore, pool: PoolHealth, clock: Clock
    ) -> None:
        self._engine, self._objects, self._pool, self._clock = engine, objects, pool, clock
        self._encrypted = EncryptedBodies(objects, clock)

    async def load_body(self, call: OnlineCall) -> bytes | EngineAnswer:
        """Return the request body, or the answer to a call whose stored body is unreadable.

        Raises PoolUnavailableError for an unavailable object store, which is part of the pool.
        """
        if not (call.item.length or call.job.key_name):
            return call.item.body
        try:
            if call.job.key_name:
                return await self._encrypted.decrypt_call(call)
            return await asyncio.to_thread(load_body, self._objects, call.job, call.item)
        except MillraceError as failure:
            if failure.disposition is Disposition.REJECT:
                return BODY_UNREADABLE if call.job.key_name else INPUT_MISSING
            if failure.disposition is Disposition.CRASH:
                raise
            raise PoolUnavailableError(failure.code) from None

    async def serve_call(self, call: OnlineCall, body: bytes) -> EngineAnswer:
        """Return the engine's answer; cancelling aborts it. Raises what `Engine.serve` raises."""
        began_s = self._clock.monotonic_s()
        try:
            emit = self._piece_sender(call) if call.is_stream else None
            answer = await self._engine.serve(call.job.endpoint, body, emit, call.meter)
        finally:
            call.execution_s = self._clock.monotonic_s() - began_s
        if not is_transient(answer):  # a failure that may pass may be one of the pool
            self._pool.mark_available()
        if answer.body and answer.status_code < FIRST_ERROR_STATUS:
            return msgspec.structs.replace(answer, body=call.write_fingerprint(answer.body))
        return answer

    def _piece_sender(self, call: OnlineCall) -> EmitEvent:
        write_fingerprint = call.write_fingerprint

        def send_piece(event: bytes) -> None:
            if call.abort_reason is not None:
                return
            piece = write_fingerprint(event)
            if call.cipher is not None:
                place = CipherContext(call.request_id, BodyDirection.OUT, call.piece_count)
                piece = call.cipher.encrypt(piece, place)
            if len(piece) > PIECE_BYTES_MAX:
                call.abort(CallAbortReason.PIECE_TOO_LARGE)
                return
            if not call.piece_count:
                metrics.FIRST_PIECE_SECONDS.observe(self._clock.monotonic_s() - call.arrived_s)
            call.piece_count += 1
            call.replies.send_piece(piece)
            if call.is_durable:
                call.pieces.append(piece)

        return send_piece
