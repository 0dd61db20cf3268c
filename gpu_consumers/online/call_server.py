"""Runs one online call on the engine: loads its body and sends the pieces of its stream.

Answers and pieces name what answered in `system_fingerprint`: the value of the header
`x-millrace-model-version`, and the first digits of the engine's hash if it is known. Engines write
their own value into some chunks or none. It is replaced.

    "system_fingerprint":"org/small@0f3c9a…+77ab01c2d3e4"
"""

import asyncio
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import msgspec

from core.bodies.body_limit_settings import DEFAULT_BODY_LIMITS, BodyLimits
from core.bodies.body_limits import find_exceeded_limit
from core.clock import Clock
from core.errors import Disposition, MillraceError, PoolBusyError
from core.shown_versions import short_digest, version_in_full
from gpu_consumers import metrics
from gpu_consumers.adapters.adapter_slots import adapter_of
from gpu_consumers.engines.engine import EmitEvent, Engine, EngineAnswer
from gpu_consumers.engines.error_answers import body_limit_answer, is_transient
from gpu_consumers.flow_control.capacity_publisher import PoolHealth
from gpu_consumers.inflight.online_call import CallAbortReason, OnlineCall
from gpu_consumers.inflight.replies import PIECE_BYTES_MAX
from gpu_consumers.payloads.bodies import EncryptedBodies, load_body, rejection
from gpu_consumers.payloads.engine_bodies import PrepareBody
from storage.crypto.body_ciphers import BodyDirection, CipherContext
from storage.objects.object_store import ObjectStore

WriteFingerprint = Callable[[bytes], bytes]

_ENDPOINTS: Final = frozenset({"/v1/chat/completions", "/v1/completions"})
"""Endpoints whose answers have the field."""

# Inside a JSON string its quotes would be escaped, so a match is always the field.
_FIELD: Final = re.compile(rb'"system_fingerprint"\s*:\s*(?:null|"(?:[^"\\]|\\.)*")')
_NAME: Final = b'"system_fingerprint"'
_VALUE_ENDS: Final = tuple(bytes([byte]) for byte in b'"]}0123456789el')  # also of true, null


@lru_cache(maxsize=1024)
def fingerprint_writer(
    endpoint: str, model: str, version: str, engine: str = ""
) -> WriteFingerprint:
    """Return a function that writes the fingerprint into a JSON object.

    `model` is the name in the request. `engine` is the hash of the engine that answers; empty:
    unknown. For an endpoint without the field, the function returns its argument.
    """
    if endpoint not in _ENDPOINTS:
        return lambda payload: payload
    fingerprint = version_in_full(model, version) + (engine and f"+{short_digest(engine)}")
    field = b'"system_fingerprint":' + msgspec.json.encode(fingerprint)

    def write_fingerprint(payload: bytes) -> bytes:
        if _NAME in payload and (found := _FIELD.search(payload)) is not None:
            return payload[: found.start()] + field + payload[found.end() :]
        end = payload.rfind(b"}")
        if end < 0 or not payload[:end].rstrip().endswith(_VALUE_ENDS):
            return payload  # no object, or an empty one
        return b"%b,%b%b" % (payload[:end], field, payload[end:])

    return write_fingerprint


_STORE_WAIT_S: Final = 1.0
"""Time until a call is requeued whose body the object store does not return."""


class CallServer:
    """Serves calls with the engine. Used on the event loop."""

    def __init__(  # noqa: PLR0913  one argument for each part of the process
        self,
        engine: Engine,
        objects: ObjectStore,
        pool: PoolHealth,
        clock: Clock,
        *,
        prepare_body: PrepareBody | None,
        limits: BodyLimits = DEFAULT_BODY_LIMITS,
        engine_hash: str = "",
    ) -> None:
        """`prepare_body` is None if the engine gets bodies unchanged.

        `engine_hash` is that of the engine; empty: unknown.
        """
        self._engine_hash = engine_hash
        self._prepare_body, self._limits = prepare_body, limits
        self._engine, self._objects, self._pool, self._clock = engine, objects, pool, clock
        self._encrypted = EncryptedBodies(objects, clock)

    async def load_body(self, call: OnlineCall) -> bytes | EngineAnswer:
        """Return the request body, or the answer to a call whose body must not be executed.

        Such a body is unreadable, or exceeds a limit. Raises PoolBusyError, after a wait, for an
        unavailable object store: other calls go on.
        """
        body = await self._load_body(call)
        if isinstance(body, bytes) and (exceeded := find_exceeded_limit(body, self._limits)):
            return body_limit_answer(exceeded)
        return body

    async def _load_body(self, call: OnlineCall) -> bytes | EngineAnswer:
        if not (call.item.length or call.job.key_name):
            return call.item.body
        try:
            if call.job.key_name:
                return await self._encrypted.decrypt_call(call)
            return await asyncio.to_thread(load_body, self._objects, call.job, call.item)
        except MillraceError as failure:
            if failure.disposition is Disposition.REJECT:
                return rejection(failure, is_stored=not call.job.key_name)
            if failure.disposition is Disposition.CRASH:
                raise
            await asyncio.sleep(_STORE_WAIT_S)
            raise PoolBusyError(failure.code) from None

    async def serve_call(self, call: OnlineCall, body: bytes) -> EngineAnswer:
        """Return the engine's answer; cancelling aborts it. Raises what `Engine.serve` raises."""
        began_s = self._clock.monotonic_s()
        if self._prepare_body is not None:
            body = self._prepare_body(body, call.job)
        try:
            emit = self._piece_sender(call) if call.is_stream else None
            answer = await self._engine.serve(
                call.job.endpoint, body, emit, call.meter, adapter_of(call.job)
            )
        finally:
            call.execution_s = self._clock.monotonic_s() - began_s
        if not is_transient(answer):  # a failure that may pass may be one of the pool
            self._pool.mark_available()
        if answer.body and not answer.is_error:
            return msgspec.structs.replace(answer, body=self._fingerprint_writer(call)(answer.body))
        return answer

    def _piece_sender(self, call: OnlineCall) -> EmitEvent:
        write_fingerprint = self._fingerprint_writer(call)

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

        return send_piece

    def _fingerprint_writer(self, call: OnlineCall) -> WriteFingerprint:
        job = call.job
        return fingerprint_writer(job.endpoint, job.model, job.model_version, self._engine_hash)
