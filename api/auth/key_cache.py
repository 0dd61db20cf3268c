"""Cache of authenticated API keys, refreshed in the background."""

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import sqlalchemy as sa

from api.runtime.database import Database, DatabaseUnavailableError
from core.clock import Clock
from tenancy.key_secrets import secret_hash

Owner = TypeVar("Owner")
"""What a key is authenticated as: a principal."""

_ENTRIES_MAX: Final = 10_000


@dataclass(slots=True)
class _Entry(Generic[Owner]):
    """The owner of a secret."""

    principal: Owner
    expires_s: float  # monotonic; after it the secret must be looked up again
    was_used: bool = True  # since `take_used_hashes`


class KeyCache(Generic[Owner]):
    """Caches for seconds which principal a secret belongs to, so that polling clients need no
    query.

    Failures are not cached: a new key works at once. Keys in use are confirmed in the background
    before they expire, so that an active key never waits for Postgres.
    """

    def __init__(self, *, ttl_s: float, clock: Clock) -> None:
        """`ttl_s` limits how long a revoked key keeps working."""
        self._ttl_s = ttl_s
        self._clock = clock
        self._entries: dict[bytes, _Entry[Owner]] = {}

    def find(self, secret: str) -> Owner | None:
        """Return the principal of a secret, or None when it is not cached."""
        known = self._entries.get(secret_hash(secret))
        if known is None or known.expires_s <= self._clock.monotonic_s():
            return None
        known.was_used = True
        return known.principal

    def remember(self, secret: str, principal: Owner, queried_s: float) -> None:
        """Cache the result of a query that was sent at monotonic time `queried_s`."""
        key = secret_hash(secret)
        self._entries.pop(key, None)  # so that the oldest entry is the first
        if len(self._entries) >= _ENTRIES_MAX:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = _Entry(principal, queried_s + self._ttl_s)

    def take_used_hashes(self) -> list[bytes]:
        """Return the hashes of secrets used since the last call, and drop expired entries."""
        now_s = self._clock.monotonic_s()
        self._entries = {
            key: known for key, known in self._entries.items() if known.expires_s > now_s
        }
        used = [key for key, known in self._entries.items() if known.was_used]
        for key in used:
            self._entries[key].was_used = False
        return used

    def confirm(self, queried: list[bytes], working: dict[bytes, Owner], queried_s: float) -> None:
        """Extend the entries in `working` from `queried_s` on, and drop the others of `queried`."""
        for key in queried:
            principal = working.get(key)
            if principal is None:
                self._entries.pop(key, None)
            elif key in self._entries:
                known = self._entries[key]
                known.principal, known.expires_s = principal, queried_s + self._ttl_s

    def now_s(self) -> float:
        """Return this cache's monotonic time."""
        return self._clock.monotonic_s()


def offered_secret(authorization: str | None, x_api_key: str | None) -> str | None:
    """Return the secret of `Authorization: Bearer …`, or else of `X-Api-Key`."""
    scheme, _, credentials = (authorization or "").partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return credentials.strip()
    return (x_api_key or "").strip() or None


_LOG = logging.getLogger(__name__)

ROUNDS_PER_TTL: Final = 4
"""Refreshes within the time to live of an entry: one slow query does not let an entry expire."""


async def refresh_keys(
    keys: KeyCache[Owner],
    database: Database,
    every_s: float,
    find_working: Callable[[sa.Connection, Collection[bytes]], dict[bytes, Owner]],
) -> None:
    """Refresh until cancelled. While Postgres is unavailable, entries expire.

    `find_working` returns the principals of the hashes that still work.
    """
    while True:
        await asyncio.sleep(every_s)
        queried_s, queried = keys.now_s(), keys.take_used_hashes()
        if not queried:
            continue
        try:
            working = await database.run_across_tenants(find_working, queried)
        except DatabaseUnavailableError:
            _LOG.warning("keys were not confirmed")
        else:
            keys.confirm(queried, working, queried_s)
