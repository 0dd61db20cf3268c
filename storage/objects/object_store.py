"""The object store as the rooms see it: whole objects under names, written once or replaced.

An object shows only when its upload is complete, so no reader ever meets half a file.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol, Self

from storage.objects.errors import ObjectKeyError

BLOCK_BYTES: Final = 1024 * 1024
"""Largest block that a reader is given."""

KEY_CHARS_MAX: Final = 512
_SEGMENT_CHARS_MAX: Final = 200  # a file name of the local store
_SEGMENT: Final = re.compile(r"[a-z0-9_-][a-z0-9._-]*")
_PREFIX: Final = re.compile(r"[a-z0-9._/-]*")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A complete object, as its upload counted it."""

    key: str
    size_bytes: int
    sha256_hex: str


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object as a listing shows it."""

    key: str
    size_bytes: int
    modified_s: float  # seconds since the epoch, by the store's clock


class Upload(Protocol):
    """An object being written; it is aborted on leaving its `with` block unless complete."""

    def write(self, data: bytes) -> None:
        """Append any number of bytes; memory stays constant.

        Raises ObjectStoreFullError, ObjectTooLargeError. A write that raises aborts the upload.
        """
        ...

    def complete(self, *, if_absent: bool = False) -> StoredObject:
        """Make the object durable and visible, in place of one of the same key.

        With `if_absent` exactly one of any number of rivals wins; the others are aborted.
        Raises ObjectExistsError, ObjectStoreFullError.
        """
        ...

    def abort(self) -> None:
        """Leave nothing behind; harmless after `complete` or another `abort`."""
        ...

    def __enter__(self) -> Self:
        """Start the block."""
        ...

    def __exit__(self, *_: object) -> None:
        """Abort unless complete."""
        ...


class ObjectReader(Protocol):
    """What those need who only read; see `ObjectStore`."""

    def read(self, key: str, *, offset: int = 0, length: int | None = None) -> "ObjectBlocks":
        """Open an object. Raises ObjectMissingError, here, and ObjectStoreAwayError."""
        ...


class ObjectStore(Protocol):
    """Objects by key; safe for threads. Every method may raise ObjectStoreAwayError (retry).

    A key is lower-case letters, digits, `.`, `_`, `-` and `/`. No key may be a folder of another
    (`a` and `a/b`): a local store cannot hold both.
    """

    def begin_upload(self, key: str) -> Upload:
        """Start an upload. Raises ObjectKeyError."""
        ...

    def read(self, key: str, *, offset: int = 0, length: int | None = None) -> "ObjectBlocks":
        """Open an object; `offset` past its end reads nothing. Raises ObjectMissingError, here.

        Blocks hold at most 1 MiB. A store may cut a reader that pauses for minutes: open the
        object again at the offset reached.
        """
        ...

    def size(self, key: str) -> int:
        """Return the bytes of an object. Raises ObjectMissingError."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; harmless when there is none."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield every complete object whose key starts with `prefix`, in no set order."""
        ...

    def sweep_temporary(self, older_than_s: float) -> int:
        """Remove what uploads that stored nothing for `older_than_s` left; return their number.

        It must exceed the time in which a live upload brings a part (S3) or a MiB (local).
        """
        ...


class ObjectBlocks(Iterator[bytes]):
    """The bytes of an object, block by block; closes itself at the end, or sooner by `close`."""

    def __init__(
        self, read: Callable[[int], bytes], close: Callable[[], None], length: int | None
    ) -> None:
        """`read` gives at most so many bytes, none at the end; `length` bounds the whole."""
        self._read = read
        self._close = close
        self._left = length
        self._is_open = True

    def __next__(self) -> bytes:
        """Return the next block, never an empty one."""
        if not self._is_open:
            raise StopIteration
        wanted = BLOCK_BYTES if self._left is None else min(BLOCK_BYTES, self._left)
        block = self._read(wanted) if wanted else b""
        if not block:
            self.close()
            raise StopIteration
        if self._left is not None:
            self._left -= len(block)
        return block

    def close(self) -> None:
        """Give the file or connection back; harmless when repeated."""
        if self._is_open:
            self._is_open = False
            self._close()

    def __enter__(self) -> Self:
        """Close at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """See `close`."""
        self.close()


def checked_key(key: str) -> str:
    """Return `key` when every store can hold it. Raises ObjectKeyError."""
    segments = key.split("/")
    good = len(key) <= KEY_CHARS_MAX and all(
        len(segment) <= _SEGMENT_CHARS_MAX and _SEGMENT.fullmatch(segment) for segment in segments
    )
    if not good:
        raise ObjectKeyError(key=key)
    return key


def checked_prefix(prefix: str) -> str:
    """Return `prefix` when it can be the start of a key, or empty. Raises ObjectKeyError."""
    dots = any(segment.startswith(".") for segment in prefix.split("/"))
    if dots or prefix.startswith("/") or not _PREFIX.fullmatch(prefix):
        raise ObjectKeyError(key=prefix)
    return prefix
