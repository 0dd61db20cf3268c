"""Consistent hashing with bounded loads: a key keeps its member while others come and go. Pure.

Sources: Karger et al., "Consistent Hashing and Random Trees" (STOC 1997); Mirrokni, Thorup and
Zadimoghaddam, "Consistent Hashing with Bounded Loads" (SODA 2018).
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from hashlib import blake2b
from itertools import count, islice
from typing import Final

POINTS: Final = 32
"""Points of a member on the ring. The bound of the loads evens out what they leave uneven."""

LOAD_FACTOR: Final = 1.25
"""A member with more than this factor times its share of all load gets nothing new."""

PROBES_MAX: Final = 16
"""Members that a search for one with space visits: it costs the same in a pool of thousands."""

_DIGEST_BYTES: Final = 64
_POINT_BYTES: Final = 8

_INSERTS_MAX: Final = 8 * POINTS
_VERSIONS: Final = count(1)


def hash_key(*parts: bytes) -> int:
    """Return the place of a key on the ring: 64 bits, the same in every process."""
    return int.from_bytes(blake2b(b"\0".join(parts), digest_size=_POINT_BYTES).digest(), "big")


class HashRing:
    """Members with their loads. A change of members is applied at the next search."""

    def __init__(self) -> None:
        """Start without members."""
        self._points: list[int] = []  # ascending, without the new ones
        self._owners: dict[int, str] = {}  # of all points
        self._new_points: list[int] = []
        self._loads: dict[str, tuple[int, int]] = {}  # load and weight of each member
        self._load = self._weight = 0
        self._is_changed = False
        self._version = 0

    @property
    def version(self) -> int:
        """A number that is new whenever members have changed, and differs between rings."""
        if self._is_changed:
            self._sort()
        return self._version

    def set_load(self, member: str, load: int, weight: int) -> None:
        """Add a member, or change its load; it is due the part of all load that its weight is."""
        known = self._loads.get(member)
        if known is None:
            known = 0, 0
            self._add_points(member)
        self._loads[member] = load, weight
        self._load += load - known[0]
        self._weight += weight - known[1]

    def remove(self, member: str) -> None:
        """Remove a member, if it is here."""
        known = self._loads.pop(member, None)
        if known is not None:
            self._remove_points(member)
            self._load -= known[0]
            self._weight -= known[1]

    def has_space(self, member: str) -> bool:
        """Whether the load of a member is not above the bound; so is that of one member always."""
        load, weight = self._loads[member]
        return load * self._weight <= LOAD_FACTOR * self._load * weight

    def primary(self, key: int) -> str | None:
        """Return the first member behind the key, whatever its load; None without members."""
        if self._is_changed:
            self._sort()
        if not self._points:
            return None
        return self._owners[self._points[bisect_right(self._points, key) % len(self._points)]]

    def owner(self, key: int) -> str | None:
        """Return the first member behind the key that has space; None if `PROBES_MAX` have none."""
        if (member := self.primary(key)) is None or self.has_space(member):
            return member
        members = islice(self.members_from(key), 1, PROBES_MAX)
        return next(filter(self.has_space, members), None)

    def members_from(self, key: int) -> Iterator[str]:
        """Yield every member once, in the order of the ring from the key on."""
        if self._is_changed:
            self._sort()
        seen: set[str] = set()
        first = bisect_right(self._points, key)
        for numbers in (range(first, len(self._points)), range(first)):
            for number in numbers:
                member = self._owners[self._points[number]]
                if member not in seen:
                    seen.add(member)
                    yield member

    def _add_points(self, member: str) -> None:
        self._is_changed = True
        for point in _points(member):
            self._owners[point] = member
            self._new_points.append(point)

    def _remove_points(self, member: str) -> None:
        if self._new_points:
            self._sort()
        self._is_changed = True
        for point in _points(member):
            del self._owners[point]
            del self._points[bisect_left(self._points, point)]

    def _sort(self) -> None:
        """Put new points in their places: a few each, many by sorting all."""
        self._is_changed = False
        self._version = next(_VERSIONS)
        if len(self._new_points) > _INSERTS_MAX:
            self._points = sorted(self._owners)
        else:
            for point in self._new_points:
                insort(self._points, point)
        self._new_points.clear()


def _points(member: str) -> list[int]:
    """Return the points of a member."""
    found: list[int] = []
    for number in range(POINTS * _POINT_BYTES // _DIGEST_BYTES):
        digest = blake2b(b"%d %s" % (number, member.encode()), digest_size=_DIGEST_BYTES).digest()
        found += (
            int.from_bytes(digest[at : at + _POINT_BYTES], "big")
            for at in range(0, _DIGEST_BYTES, _POINT_BYTES)
        )
    return found
