"""Bodies that are stored or encrypted: loaded for the engine, and prepared for the log.

A body that fits no record is in the object store. A job that retains nothing names a data key,
under which its bodies are encrypted. While the store is unavailable or throttles, items that need
it wait, are requeued and not charged; other items of the same replica and batch go on.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

import msgspec

from core.bodies.body_limit_settings import DEFAULT_BODY_LIMITS, BodyLimits
from core.bodies.body_limits import find_exceeded_limit
from core.clock import Clock
from core.errors import Disposition, MillraceError
from core.ids import new_uuid
from core.object_names import answer_prefix
from core.outcomes import Outcome
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import (
    PERMANENT_CODES,
    body_limit_answer,
    error_answer,
    error_code_of,
)
from gpu_consumers.inflight.batch_run import BatchRun
from gpu_consumers.inflight.item_outcomes import INPUT_MISSING
from gpu_consumers.inflight.online_call import OnlineCall
from storage.crypto.body_ciphers import BodyCipher, BodyDirection, CipherContext
from storage.crypto.data_keys import DataKeyDestroyedError, DataKeys
from storage.objects.object_store import ObjectStore, read_object, write_object
from topics.records.object_keys import (
    ForeignObjectError,
    require_own_data_key,
    require_own_input,
)
from topics.records.records import Item, ItemOutcome, JobRef

_LOG: Final = logging.getLogger(__name__)

ANSWER_BYTES_MAX = 512 * 1024
"""A larger answer is stored as an object, and its record names the key of the object."""

STORE_WAIT_S: Final = 5.0
"""Time without reads of bodies after a failure of the store, and until their items are requeued."""

BODY_UNREADABLE: Final = error_answer(
    500,
    "The body of this request cannot be decrypted: its key is deleted, or of another request.",
    code="body_unreadable",
)
FOREIGN_OBJECT: Final = error_answer(500, str(ForeignObjectError()), code=ForeignObjectError.code)

_OUR_CODES: Final = PERMANENT_CODES | {
    "adapter_refused",
    "adapter_unknown",
    "answer_missing",
    "answer_not_events",
    "answer_not_http",
    "answer_not_json",
    "item_timeout",
    "simulated_fault",
    "stream_unsupported",
    "unknown_endpoint",
    "upstream_disconnected",
}
"""Error codes that may be stored in the clear. Others are text of an upstream."""


class InputUnreadableError(MillraceError):
    """The input file is not the one that was validated."""

    code = "input_unreadable"
    disposition = Disposition.REJECT


class _Line(msgspec.Struct):
    body: msgspec.Raw


_LINE = msgspec.json.Decoder(_Line)


def load_body(objects: ObjectStore, job: JobRef, item: Item) -> bytes:
    """Return the body of an item that is a line (offset, length) of the validated input file.

    Raises InputUnreadableError, ForeignObjectError and the errors of the store.
    """
    require_own_input(job)
    line = read_object(objects, job.input_key, offset=item.offset, length=item.length)
    try:
        return bytes(_LINE.decode(line).body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InputUnreadableError(index=item.index) from None


def store_body(objects: ObjectStore, job_id: UUID, body: bytes) -> str:
    """Store an answer under a new key and return the key. Raises the errors of the store."""
    key = answer_prefix(job_id) + new_uuid().hex
    write_object(objects, key, body)
    return key


class EncryptedBodies:
    """Decrypts requests and encrypts outcomes of jobs that name a data key."""

    def __init__(self, objects: ObjectStore, clock: Clock) -> None:
        self._objects, self._keys = objects, DataKeys(objects, clock)

    async def decrypt_item(self, job: JobRef, item: Item) -> bytes:
        """Return the body of an item that is encrypted or in the input file.

        Raises InputUnreadableError, ForeignObjectError and the errors of data keys, ciphers and
        the store.
        """
        if item.length:
            return await asyncio.to_thread(load_body, self._objects, job, item)
        cipher = await self._cipher(job)
        return cipher.decrypt(item.body, CipherContext(job.job_id, BodyDirection.IN, item.index))

    async def decrypt_call(self, call: OnlineCall) -> bytes:
        """Return the body of a call that names a key, and set `call.cipher`.

        Raises ForeignObjectError and the errors of data keys, ciphers and the store.
        """
        job, item = call.job, call.item
        call.cipher = await self._cipher(job)
        body = item.body
        if item.length:
            require_own_input(job)
            body = await asyncio.to_thread(
                read_object, self._objects, job.input_key, length=item.length
            )
        return call.cipher.decrypt(body, CipherContext(job.job_id, BodyDirection.IN, item.index))

    def has_key(self, job: JobRef) -> bool:
        """Return whether the key of a job is in memory, so that the store is not needed."""
        return self._keys.cached(job.key_name) is not None

    async def encrypt_outcomes(
        self, job: JobRef, outcomes: Sequence[ItemOutcome]
    ) -> list[ItemOutcome]:
        """Return outcomes with encrypted bodies and without custom ids. Raises a store's errors.

        When the key is deleted, nobody could read an answer: the items fail with `key_gone`.
        Under the key of another job, others could: the items fail with `foreign_object`.
        """
        try:
            cipher = await self._cipher(job)
        except DataKeyDestroyedError:
            message = "The key of this request's body is deleted."
            return [_without_answer(one, DataKeyDestroyedError.code, message) for one in outcomes]
        except ForeignObjectError as error:
            return [_without_answer(one, error.code, str(error)) for one in outcomes]
        return [_encrypted(job, outcome, cipher) for outcome in outcomes]

    async def _cipher(self, job: JobRef) -> BodyCipher:
        require_own_data_key(job)
        known = self._keys.cached(job.key_name)
        if known is not None:
            return known
        return await asyncio.to_thread(self._keys.load, job.key_name)


def _encrypted(job: JobRef, outcome: ItemOutcome, cipher: BodyCipher) -> ItemOutcome:
    """Keep an error code of our own in the clear: the writer cannot read it in the body."""
    code = outcome.error_code
    if outcome.outcome is Outcome.FAILED and code is None:
        found = error_code_of(outcome.body)
        code = found if found in _OUR_CODES else None
    place = CipherContext(job.job_id, BodyDirection.OUT, outcome.index)
    body = outcome.body and cipher.encrypt(outcome.body, place)
    return msgspec.structs.replace(outcome, custom_id=None, body=body, error_code=code)


def _without_answer(outcome: ItemOutcome, code: str, message: str) -> ItemOutcome:
    return msgspec.structs.replace(
        outcome,
        custom_id=None,
        outcome=Outcome.FAILED,
        status_code=0,
        body=b"",
        error_code=code,
        error_message=message,
        retryable=False,
    )


class BatchBodies:
    """Loads the request bodies of batches and prepares their outcomes for the log."""

    def __init__(
        self, objects: ObjectStore, clock: Clock, limits: BodyLimits = DEFAULT_BODY_LIMITS
    ) -> None:
        self._objects, self._limits, self._clock = objects, limits, clock
        self._encrypted = EncryptedBodies(objects, clock)
        self._read_again_at_s = -math.inf

    async def load_bodies(
        self, run: BatchRun, positions: Sequence[int], reject: Callable[[int, EngineAnswer], None]
    ) -> dict[int, bytes]:
        """Return request bodies by position; `reject` items without a body that may be executed.

        Those are unreadable, or exceed a limit. Items whose body the store cannot return now are
        left out.
        """
        bodies = await self._load(run, positions, reject)
        for position, body in [*bodies.items()]:
            if exceeded := find_exceeded_limit(body, self._limits):
                del bodies[position]
                reject(position, body_limit_answer(exceeded))
        return bodies

    async def _load(
        self, run: BatchRun, positions: Sequence[int], reject: Callable[[int, EngineAnswer], None]
    ) -> dict[int, bytes]:
        bodies: dict[int, bytes] = {}
        for position in positions:
            job, item = run.items[position]
            if not is_body_stored(job, item):
                bodies[position] = item.body
            elif self._clock.monotonic_s() < self._read_again_at_s:
                run.is_store_unavailable = True
            elif not run.is_store_unavailable:
                try:
                    bodies[position] = await self._encrypted.decrypt_item(job, item)
                except MillraceError as failure:
                    if _is_rejection(failure, run):
                        reject(position, rejection(failure, is_stored=item.length > 0))
                    else:
                        self._read_again_at_s = self._clock.monotonic_s() + STORE_WAIT_S
        return bodies

    async def prepare_outcomes(
        self, run: BatchRun, job: JobRef, outcomes: list[ItemOutcome]
    ) -> list[ItemOutcome]:
        """Return outcomes of one job as records may hold them: encrypted, large bodies stored.

        Outcomes that need the store while it is unavailable are left out; their items run again.
        """
        if job.key_name and outcomes:
            if run.is_store_unavailable and not self._encrypted.has_key(job):
                return []
            try:
                outcomes = await self._encrypted.encrypt_outcomes(job, outcomes)
            except MillraceError as failure:
                if _is_rejection(failure, run):
                    raise
                return []
        if all(len(outcome.body) <= ANSWER_BYTES_MAX for outcome in outcomes):
            return outcomes
        prepared = [await self._store_large_body(run, job, outcome) for outcome in outcomes]
        return [outcome for outcome in prepared if outcome is not None]

    async def _store_large_body(
        self, run: BatchRun, job: JobRef, outcome: ItemOutcome
    ) -> ItemOutcome | None:
        """Return the outcome without its large body; None if the store is unavailable."""
        if len(outcome.body) <= ANSWER_BYTES_MAX:
            return outcome
        if run.is_store_unavailable:
            return None
        try:
            key = await asyncio.to_thread(store_body, self._objects, job.job_id, outcome.body)
        except MillraceError as failure:
            if _is_rejection(failure, run):
                raise
            return None
        return msgspec.structs.replace(outcome, body=b"", body_key=key)


def rejection(failure: MillraceError, *, is_stored: bool) -> EngineAnswer:
    """Return the answer to an item whose body cannot be read; `is_stored` as an object."""
    if isinstance(failure, ForeignObjectError):
        return FOREIGN_OBJECT
    return INPUT_MISSING if is_stored else BODY_UNREADABLE


def is_body_stored(job: JobRef, item: Item) -> bool:
    """Return whether the body of an item may need the object store: for itself or for its key."""
    return bool(item.length or job.key_name)


def needs_store(job: JobRef, answer: EngineAnswer) -> bool:
    """Return whether an outcome needs the object store: for its key, or for its large body."""
    return bool(job.key_name) or len(answer.body) > ANSWER_BYTES_MAX


def _is_rejection(failure: MillraceError, run: BatchRun) -> bool:
    """Return whether the item is at fault; if the store is, mark it as unavailable in `run`.

    Raises a failure that must end the process, for example when the store refuses our credentials.
    """
    if failure.disposition is Disposition.CRASH:
        raise failure
    run.is_store_unavailable = failure.disposition is Disposition.RETRY
    if run.is_store_unavailable:
        _LOG.warning("the object store is away", extra={"code": failure.code})
    return not run.is_store_unavailable
