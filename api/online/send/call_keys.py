"""Data keys for calls of tenants with zero retention: one key an hour, destroyed an hour later.

A key for each call would need a request to the object store for each. Records of such a call are
unreadable at most two hours later, or at once when this process stops in good order.
"""

import asyncio
import logging
from typing import Final

import msgspec

from api.runtime.object_threads import run_in_store_thread
from core.clock import Clock
from core.errors import MillraceError
from core.object_names import CALL_KEYS
from storage.crypto.body_ciphers import ANSWER_END_INDEX, BodyCipher, BodyDirection, CipherContext
from storage.crypto.data_keys import DataKeys
from storage.objects.object_store import ObjectStore
from topics.records.records import Item, JobRef, ReplyEnd

_LOG = logging.getLogger(__name__)

KEY_S: Final = 3600.0
_CHECK_S: Final = 60.0
_FIRST_ERROR_STATUS: Final = 400


class CallKeys:
    """The keys of one API process. All methods run on the event loop."""

    def __init__(self, objects: ObjectStore, clock: Clock, caller_id: str) -> None:
        self._objects, self._clock, self._caller_id = objects, clock, caller_id
        self._keys = DataKeys(objects, clock)
        self._ciphers: dict[str, BodyCipher] = {}
        self._hours: dict[str, int] = {}

    async def current_key_name(self) -> str:
        """Create this hour's key if necessary, and return its name. Raises store errors."""
        hour = self._hour()
        name = f"{CALL_KEYS}{self._caller_id}-{hour}"
        if name not in self._ciphers:
            self._hours[name] = hour
            self._ciphers[name] = await run_in_store_thread(self._keys.load_or_create, name)
        return name

    def cipher(self, job: JobRef) -> BodyCipher | None:
        """Return the cipher of a call; None for a call in plain text."""
        return self._ciphers[job.key_name] if job.key_name else None

    async def run(self) -> None:
        """Destroy expired keys until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_S)
            await self.destroy_expired()

    async def destroy_expired(self) -> None:
        """Destroy the keys older than the previous hour. Failures are retried on the next run."""
        await self._destroy([n for n, hour in self._hours.items() if hour < self._hour() - 1])

    async def stop(self) -> None:
        """Destroy all keys. No call of this process may be open any more."""
        await self._destroy([*self._hours])

    async def _destroy(self, names: list[str]) -> None:
        for name in names:
            try:
                await asyncio.to_thread(self._objects.delete, name)
            except MillraceError as failure:  # retried, or found by the orphan sweep
                _LOG.warning("a key of calls stays", extra={"code": failure.code})
                continue
            self._hours.pop(name, None)
            self._ciphers.pop(name, None)

    def _hour(self) -> int:
        return int(self._clock.monotonic_s() // KEY_S)


def encrypt_item(job: JobRef, item: Item, cipher: BodyCipher | None) -> Item:
    """Return the item of a call with its body encrypted, for the log."""
    if cipher is None or item.length:
        return item
    place = CipherContext(job.job_id, BodyDirection.IN, item.index)
    return msgspec.structs.replace(item, body=cipher.encrypt(item.body, place))


def decrypt_pieces(job: JobRef, pieces: list[bytes], first: int, cipher: BodyCipher) -> list[bytes]:
    """Return decrypted pieces; `first` is the number of the first. Raises BodyUnreadableError."""
    return [
        cipher.decrypt(piece, CipherContext(job.job_id, BodyDirection.OUT, number))
        for number, piece in enumerate(pieces, first)
    ]


def decrypt_end(job: JobRef, end: ReplyEnd, cipher: BodyCipher) -> ReplyEnd:
    """Return a decrypted end. Raises BodyUnreadableError.

    An error of a call that ended before its replica had the key is in plain text.
    """
    is_plain_error = end.status_code >= _FIRST_ERROR_STATUS and end.body[:1] == b"{"
    if not end.body or is_plain_error:
        return end
    return msgspec.structs.replace(end, body=decrypt_body(job, end.body, cipher))


def decrypt_body(job: JobRef, body: bytes, cipher: BodyCipher) -> bytes:
    """Return the decrypted body of an end. Raises BodyUnreadableError."""
    return cipher.decrypt(body, CipherContext(job.job_id, BodyDirection.OUT, ANSWER_END_INDEX))
