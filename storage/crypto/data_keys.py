"""Stores data keys as objects: every role with the store can read them, and delete them for good.

Topics are append-only and Postgres has backups, but an object can be destroyed. So the store must
keep no old versions below `keys/` (docs/zero_retention.md).
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
from storage.objects.object_store import ObjectStore, read_object

CACHED_KEYS_MAX: Final = 256
"""Keys in memory; further keys are read from the store for each use."""

KEY_CACHE_S_MAX: Final = 300.0
"""How long a process may still use a key that was destroyed."""


class DataKeyDestroyedError(MillraceError):
    """The data key of these bodies was destroyed. They cannot be read any more."""

    code = "key_gone"
    disposition = Disposition.REJECT


@dataclass(frozen=True, slots=True)
class _CachedKey:
    cipher: BodyCipher
    until_s: float  # by the monotonic clock


class DataKeys:
    """Returns ciphers by key name, with a cache of the latest. Safe for threads."""

    def __init__(
        self, objects: ObjectStore, clock: Clock, *, cached_max: int = CACHED_KEYS_MAX
    ) -> None:
        self._objects, self._clock = objects, clock
        self._cached_max = cached_max
        self._cached: OrderedDict[str, _CachedKey] = OrderedDict()
        self._lock = threading.Lock()

    def cached(self, name: str) -> BodyCipher | None:
        """Return the cipher of a key in memory, or None; never blocks."""
        with self._lock:
            key = self._cached.get(name)
            if key is None:
                return None
            if key.until_s <= self._clock.monotonic_s():
                del self._cached[name]
                return None
            self._cached.move_to_end(name)
            return key.cipher

    def load(self, name: str) -> BodyCipher:
        """Return the cipher of a key. Raises DataKeyDestroyedError and the store's errors."""
        return self.cached(name) or self._read(name)

    def load_or_create(self, name: str) -> BodyCipher:
        """Return the cipher of a key, created if it does not exist.

        Of concurrent callers exactly one creates it. Raises the store's errors.
        """
        if (cached := self.cached(name)) is not None:
            return cached
        secret = secrets.token_bytes(KEY_BYTES)
        try:
            with self._objects.begin_upload(name) as upload:
                upload.write(secret)
                upload.complete(if_absent=True)
        except ObjectExistsError:
            return self._read(name)
        return self._add_to_cache(name, secret)

    def evict(self, name: str) -> None:
        """Remove a key from memory."""
        with self._lock:
            self._cached.pop(name, None)

    def _read(self, name: str) -> BodyCipher:
        try:
            secret = read_object(self._objects, name)
        except ObjectNotFoundError:
            raise DataKeyDestroyedError from None
        if len(secret) != KEY_BYTES:
            raise DataKeyDestroyedError
        return self._add_to_cache(name, secret)

    def _add_to_cache(self, name: str, secret: bytes) -> BodyCipher:
        cipher = BodyCipher(secret)
        until_s = self._clock.monotonic_s() + KEY_CACHE_S_MAX
        with self._lock:
            self._cached[name] = _CachedKey(cipher, until_s)
            self._cached.move_to_end(name)
            while len(self._cached) > self._cached_max:
                self._cached.popitem(last=False)
        return cipher
