"""Which items of a job are identical: those whose bodies say the same. Pure.

Sixteen bytes an item while a file is read, about sixty when they are sorted: a file of any content
has its bound.
"""

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final

import msgspec
import numpy as np

DIGEST_BYTES: Final = 16
"""Chance never makes two of a million bodies equal, and whoever could owns them all."""


def body_digest(body: Mapping[str, Any]) -> bytes:
    """Return the digest of a body, the same for every way to write its space, escapes and fields.

    Only its own fields may change places: inside of them the order counts, since that of the
    properties of a schema, for one, steers the answer. The endpoint is that of the job.
    """
    canonical = msgspec.json.encode(dict(sorted(body.items())))
    return blake2b(canonical, digest_size=DIGEST_BYTES).digest()


_AT_ONCE: Final = 10_000  # numbers of Python's own are large


class DuplicateFinder:
    """Takes the bodies of a job's items in their order."""

    def __init__(self) -> None:
        """No item was seen."""
        self._digests = bytearray()

    @property
    def count(self) -> int:
        """Items that were seen."""
        return len(self._digests) // DIGEST_BYTES

    def add(self, body: Mapping[str, Any]) -> None:
        """Take the next item."""
        self._digests += body_digest(body)

    def copies(self, first_index: int = 0) -> Iterator[tuple[int, int]]:
        """Yield each copy from `first_index` on, with the first item that it is identical to.

        In the order of the copies. An original is never a copy itself.
        """
        digests = np.frombuffer(self._digests, dtype="<u8").reshape(-1, 2)
        order = np.lexsort((digests[:, 1], digests[:, 0])).astype(np.int32)  # equal ones in order
        is_first = np.ones(len(order), dtype=bool)
        for half in (0, 1):
            column = digests[order, half]
            differs = column[1:] != column[:-1]
            is_first[1:] = differs if half == 0 else is_first[1:] | differs
        originals = order[is_first][np.cumsum(is_first, dtype=np.int32) - 1]
        is_copy = ~is_first & (order >= first_index)
        copies, originals = order[is_copy], originals[is_copy]
        by_index = np.argsort(copies)
        for first in range(0, len(copies), _AT_ONCE):
            part = by_index[first : first + _AT_ONCE]
            yield from zip(copies[part].tolist(), originals[part].tolist(), strict=True)
