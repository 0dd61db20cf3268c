"""Finds the identical items of a job by a digest of each body. Pure.

Memory: 16 bytes per item while a file is read, about 60 while the digests are sorted, whatever the
file contains.
"""

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final

import msgspec
import numpy as np

DIGEST_BYTES: Final = 16
"""Enough to exclude chance collisions; a deliberate one could only mix a client's own items."""


def body_digest(body: Mapping[str, Any]) -> bytes:
    """Return the digest of a body; spacing, escapes and the order of its own fields do not count.

    The order inside nested objects counts: the order of a schema's properties, for example, steers
    the response. The endpoint is the job's.
    """
    canonical = msgspec.json.encode(dict(sorted(body.items())))
    return blake2b(canonical, digest_size=DIGEST_BYTES).digest()


_BATCH_COPIES: Final = 10_000  # Python integers are large


class DuplicateFinder:
    """Collects the bodies of a job's items in order."""

    def __init__(self) -> None:
        """Start without any item."""
        self._digests = bytearray()

    @property
    def count(self) -> int:
        """Items that were added."""
        return len(self._digests) // DIGEST_BYTES

    def add(self, body: Mapping[str, Any]) -> None:
        """Add the next item."""
        self._digests += body_digest(body)

    def copies(self, first_index: int = 0) -> Iterator[tuple[int, int]]:
        """Yield each copy from `first_index` on with the first identical item, in copy order.

        An original is never a copy itself.
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
        for first in range(0, len(copies), _BATCH_COPIES):
            part = by_index[first : first + _BATCH_COPIES]
            yield from zip(copies[part].tolist(), originals[part].tolist(), strict=True)
