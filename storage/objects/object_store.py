"""The interface of object stores: objects by key, written once or replaced.

An object is visible only when its upload is complete, so a reader never sees part of one.
"""

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol, Self

from storage.objects.errors import ObjectKeyError, UploadClosedError

BLOCK_BYTES: Final = 1024 * 1024
"""Largest block of a read."""

KEY_CHARS_MAX: Final = 512
_SEGMENT_CHARS_MAX: Final = 200  # a file name of the local store
_SEGMENT: Final = re.compile(r"[a-z0-9_-][a-z0-9._-]*")
_PREFIX: Final = re.compile(r"[a-z0-9._/-]*")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A complete object, with the size and hash that its upload counted."""

    key: str
    size_bytes: int
    sha256_hex: str


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object in a listing."""

    key: str
    size_bytes: int
    modified_s: float  # seconds since the epoch, by the store's clock


class Upload(ABC):
    """An object being written. Leaving its `with` block aborts it unless it is complete.

    Counts and hashes the bytes; the subclass of each store keeps and publishes them.
    """

    def __init__(self, key: str) -> None:
        """`key` was validated by the store."""
        self.key = key
        self._size_bytes = 0
        self._sha256 = hashlib.sha256()
        self._is_open = True

    def write(self, data: bytes) -> None:
        """Append bytes; memory stays constant.

        Raises ObjectStoreFullError, ObjectTooLargeError. A failed write aborts the upload.
        """
        self._require_open()
        try:
            self._store(data)
        except BaseException:  # also an interrupt
            self.abort()  # part of `data` may be stored, so a retry would duplicate it
            raise
        self._sha256.update(data)
        self._size_bytes += len(data)

    def complete(self, *, if_absent: bool = False) -> StoredObject:
        """Make the object durable and visible; it replaces an object of the same key.

        With `if_absent`, exactly one of concurrent uploads succeeds; the others are aborted.
        Raises ObjectExistsError, ObjectStoreFullError.
        """
        self._require_open()
        try:
            self._publish(if_absent=if_absent)
        except BaseException:  # whatever failed, no part of the upload may stay
            self.abort()
            raise
        self._is_open = False
        return StoredObject(self.key, self._size_bytes, self._sha256.hexdigest())

    def abort(self) -> None:
        """Remove the written bytes; does nothing after `complete` or another `abort`."""
        if self._is_open:
            self._is_open = False
            self._discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    @abstractmethod
    def _store(self, data: bytes) -> None:
        """Store bytes where no reader sees them."""

    @abstractmethod
    def _publish(self, *, if_absent: bool) -> None:
        """Make the complete object durable and visible; raises as `complete` does."""

    @abstractmethod
    def _discard(self) -> None:
        """Remove the stored bytes; never raises while the store is unavailable: a sweep follows."""

    def _require_open(self) -> None:
        if not self._is_open:
            raise UploadClosedError(key=self.key)


class ObjectReader(Protocol):
    """The part of `ObjectStore` that reads."""

    def read(self, key: str, *, offset: int = 0, length: int | None = None) -> "ObjectBlocks":
        """Open an object; an `offset` past its end reads nothing. Raises ObjectNotFoundError here.

        Blocks hold at most 1 MiB. A store may disconnect a reader that pauses for minutes: open the
        object again at the reached offset.
        """
        ...


class ObjectStore(ObjectReader, Protocol):
    """Objects by key; safe for threads. Every method may raise ObjectStoreUnavailableError (retry).

    A key is lower-case letters, digits, `.`, `_`, `-` and `/`. No key may be a folder of another
    (`a` and `a/b`): a local store cannot hold both.
    """

    def begin_upload(self, key: str) -> Upload:
        """Start an upload. Raises ObjectKeyError."""
        ...

    def size(self, key: str) -> int:
        """Return the size of an object in bytes. Raises ObjectNotFoundError."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object, if it exists."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield every complete object whose key starts with `prefix`, in no set order."""
        ...

    def sweep_temporary(self, older_than_s: float) -> int:
        """Remove unfinished uploads without a write for `older_than_s`; return their number.

        It must exceed the time in which a live upload writes a part (S3) or a MiB (local).
        """
        ...


class ObjectBlocks(Iterator[bytes]):
    """The bytes of an object, block by block; closed at the end or by `close`."""

    def __init__(
        self, read: Callable[[int], bytes], close: Callable[[], None], length: int | None
    ) -> None:
        """`read` returns up to that many bytes, none at the end; `length` bounds the total."""
        self._read = read
        self._close = close
        self._left = length
        self._is_open = True

    def __next__(self) -> bytes:
        """Return the next block, never an empty one."""
        if not self._is_open:
            raise StopIteration
        size = BLOCK_BYTES if self._left is None else min(BLOCK_BYTES, self._left)
        block = self._read(size) if size else b""
        if not block:
            self.close()
            raise StopIteration
        if self._left is not None:
            self._left -= len(block)
        return block

    def close(self) -> None:
        """Release the file or connection; a second call does nothing."""
        if self._is_open:
            self._is_open = False
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def checked_key(key: str) -> str:
    """Return `key` if every store supports it. Raises ObjectKeyError."""
    segments = key.split("/")
    is_valid = len(key) <= KEY_CHARS_MAX and all(
        len(segment) <= _SEGMENT_CHARS_MAX and _SEGMENT.fullmatch(segment) for segment in segments
    )
    if not is_valid:
        raise ObjectKeyError(key=key)
    return key


def checked_prefix(prefix: str) -> str:
    """Return `prefix` if it is empty or can start a key. Raises ObjectKeyError."""
    dots = any(segment.startswith(".") for segment in prefix.split("/"))
    if dots or prefix.startswith("/") or not _PREFIX.fullmatch(prefix):
        raise ObjectKeyError(key=prefix)
    return prefix


def read_object(
    objects: ObjectReader, key: str, *, offset: int = 0, length: int | None = None
) -> bytes:
    """Return the content of an object, or a range of it."""
    with objects.read(key, offset=offset, length=length) as blocks:
        return b"".join(blocks)


def write_object(objects: ObjectStore, key: str, content: bytes) -> None:
    """Store an object; it replaces one of the same key."""
    with objects.begin_upload(key) as upload:
        upload.write(content)
        upload.complete()
