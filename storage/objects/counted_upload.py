"""The base of every store's uploads: counts and hashes bytes, and closes the upload."""

import hashlib
from abc import ABC, abstractmethod
from typing import Self

from storage.objects.errors import UploadClosedError
from storage.objects.object_store import StoredObject


class CountedUpload(ABC):
    """An `Upload` that counts and hashes; subclasses store and publish the bytes."""

    def __init__(self, key: str) -> None:
        """`key` was validated by the store."""
        self.key = key
        self._size_bytes = 0
        self._sha256 = hashlib.sha256()
        self._is_open = True

    def write(self, data: bytes) -> None:
        """See `Upload`."""
        self._require_open()
        try:
            self._store(data)
        except BaseException:
            self.abort()  # part of `data` may be stored, so a retry would duplicate it
            raise
        self._sha256.update(data)
        self._size_bytes += len(data)

    def complete(self, *, if_absent: bool = False) -> StoredObject:
        """See `Upload`."""
        self._require_open()
        try:
            self._publish(if_absent=if_absent)
        except BaseException:
            self.abort()
            raise
        self._is_open = False
        return StoredObject(self.key, self._size_bytes, self._sha256.hexdigest())

    def abort(self) -> None:
        """See `Upload`."""
        if self._is_open:
            self._is_open = False
            self._discard()

    def __enter__(self) -> Self:
        """See `Upload`."""
        return self

    def __exit__(self, *_: object) -> None:
        """See `Upload`."""
        self.abort()

    @abstractmethod
    def _store(self, data: bytes) -> None:
        """Store bytes where no reader sees them."""

    @abstractmethod
    def _publish(self, *, if_absent: bool) -> None:
        """Make the complete object durable and visible; raises as `Upload.complete` does."""

    @abstractmethod
    def _discard(self) -> None:
        """Remove the stored bytes; never raises while the store is unavailable: a sweep follows."""

    def _require_open(self) -> None:
        if not self._is_open:
            raise UploadClosedError(key=self.key)
