"""Data keys as objects: readable by every role that has the store, and gone when one is deleted.

The log only grows and Postgres has backups; an object can be destroyed. So the store must keep no
old versions below `keys/` (docs/zero_retention.md).
"""

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from core.clock import Clock
from core.errors import Disposition, MillraceError
from storage.crypto.body_ciphers import KEY_BYTES, BodyCipher
from storage.objects.errors import ObjectExistsError, ObjectNotFoundError
from storage.objects.object_content import read_object
from storage.objects.object_store import ObjectStore

CACHED_KEYS_MAX: Final = 256
"""Keys in memory: more jobs of such tenants at once cost a read of the store each."""

KEY_CACHE_S_MAX: Final = 300.0
"""How long a process can go on with a key that was destroyed."""


class DataKeyDestroyedError(MillraceError):
    """The data key of these bodies was destroyed."""

    code = "key_gone"
    disposition = Disposition.REJECT


@dataclass(frozen=True, slots=True)
class _Known:
    cipher: BodyCipher
    until_s: float  # by the monotonic clock


class DataKeys:
    """Ciphers by the names of their keys; the latest are remembered. Safe for threads."""

    def __init__(
        self, objects: ObjectStore, clock: Clock, *, remembered_max: int = CACHED_KEYS_MAX
    ) -> None:
        """Remember nothing yet."""
        self._objects, self._clock = objects, clock
        self._remembered_max = remembered_max
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._lock = threading.Lock()

    def cached(self, name: str) -> BodyCipher | None:
        """Return the cipher of a key that is in memory; never waits."""
        with self._lock:
            known = self._known.get(name)
            if known is None:
                return None
            if known.until_s <= self._clock.monotonic_s():
                del self._known[name]
                return None
            self._known.move_to_end(name)
            return known.cipher

    def load(self, name: str) -> BodyCipher:
        """Return the cipher of a key. Raises DataKeyDestroyedError, and what a store raises."""
        return self.cached(name) or self._loaded(name)

    def load_or_create(self, name: str) -> BodyCipher:
        """Return the cipher of a key, which is made if there is none.

        Of any number of rivals one makes it. Raises what a store raises.
        """
        known = self.cached(name)
        if known is not None:
            return known
        secret = secrets.token_bytes(KEY_BYTES)
        try:
            with self._objects.begin_upload(name) as upload:
                upload.write(secret)
                upload.complete(if_absent=True)
        except ObjectExistsError:
            return self._loaded(name)
        return self._remembered(name, secret)

    def evict(self, name: str) -> None:
        """Let go of a key in memory."""
        with self._lock:
            self._known.pop(name, None)

    def _loaded(self, name: str) -> BodyCipher:
        try:
            secret = read_object(self._objects, name)
        except ObjectNotFoundError:
            raise DataKeyDestroyedError from None
        if len(secret) != KEY_BYTES:
            raise DataKeyDestroyedError
        return self._remembered(name, secret)

    def _remembered(self, name: str, secret: bytes) -> BodyCipher:
        cipher = BodyCipher(secret)
        until_s = self._clock.monotonic_s() + KEY_CACHE_S_MAX
        with self._lock:
            self._known[name] = _Known(cipher, until_s)
            self._known.move_to_end(name)
            while len(self._known) > self._remembered_max:
                self._known.popitem(last=False)
        return cipher
