"""Cache of responses to equal requests of one tenant to one model version.

It serves only tenants that enabled it and only requests whose response is deterministic, from the
memory of one process. A hit costs the tenant nothing: the bill counts it with no tokens.
"""

import asyncio
import hashlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import msgspec

from api.online import metrics
from api.online.calls import PlannedCall
from api.online.exchange import CompleteResponse
from api.runtime.database import Database, DatabaseUnavailableError
from core.clock import Clock
from tenancy.response_cache import (
    BilledCacheHits,
    CacheHits,
    billable_hits,
    read_response_cache_ttls,
    record_cache_hits,
)

_LOG = logging.getLogger(__name__)

HIT: Final = (b"x-millrace-cache", b"hit")
MISS: Final = (b"x-millrace-cache", b"miss")

ENTRY_BYTES_MAX: Final = 256 * 1024
"""Longer requests are not looked up, longer responses not stored."""

_ENTRY_OVERHEAD_BYTES: Final = 500  # of an entry, in addition to its key and body
_SAMPLED: Final = frozenset({"/v1/chat/completions", "/v1/completions"})


class _Key(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """Everything that a cached response depends on. A changed time to live makes another key."""

    ttl_s: int
    tenant_id: UUID
    model: str
    version: str
    base_version: str
    digest: bytes


_KEY: Final = msgspec.msgpack.Decoder(_Key)


@dataclass(frozen=True, slots=True)
class _Entry:
    body: bytes
    expires_s: float  # monotonic


class ResponseCache:
    """A least recently used cache, limited in bytes. All methods run on the event loop."""

    def __init__(self, clock: Clock, *, bytes_max: int) -> None:
        """Nothing is stored before the tenants are first read from Postgres."""
        self._clock, self._bytes_max = clock, bytes_max
        self._ttls: Mapping[UUID, int] = {}
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._bytes = 0
        self._hits: Counter[CacheHits] = Counter()
        self._unconfirmed: list[BilledCacheHits] = []  # may have been billed already

    def set_ttls(self, ttls: Mapping[UUID, int]) -> None:
        """Store responses of these tenants only, each for so many seconds."""
        self._ttls = ttls

    def key_of(self, call: PlannedCall) -> bytes | None:
        """Return the key of a call whose response may be cached, or None."""
        tenant_id, parsed = call.principal.tenant_id, call.parsed
        ttl_s = self._ttls.get(tenant_id)
        if ttl_s is None or call.is_durable or parsed.stream:
            return None
        digest = request_digest(parsed.endpoint, parsed.body)
        if digest is None:
            return None
        route = call.route
        ran = (route.name, route.version, route.base_version or "")
        return msgspec.msgpack.encode(_Key(ttl_s, tenant_id, *ran, digest))

    def find(self, key: bytes) -> CompleteResponse | None:
        """Return the cached response, and count the hit for the bill."""
        entry = self._entries.get(key)
        if entry is None or entry.expires_s <= self._clock.monotonic_s():
            metrics.CACHE.labels("miss").inc()
            return None
        self._entries.move_to_end(key)
        metrics.CACHE.labels("hit").inc()
        decoded = _KEY.decode(key)
        self._hits[CacheHits(decoded.tenant_id, decoded.model, decoded.version)] += 1
        return CompleteResponse(200, entry.body, [HIT])

    def store(self, key: bytes, answer: CompleteResponse) -> None:
        """Store a successful response."""
        if answer.status != 200 or len(answer.body) > ENTRY_BYTES_MAX:
            return
        self._drop(key)
        expires_s = self._clock.monotonic_s() + _KEY.decode(key).ttl_s
        self._entries[key] = _Entry(answer.body, expires_s)
        self._bytes += _size(key, answer.body)
        while self._bytes > self._bytes_max:
            self._drop(next(iter(self._entries)))
        metrics.CACHE_BYTES.set(self._bytes)

    async def refresh_periodically(self, database: Database, every_s: float) -> None:
        """Refresh the tenants and bill hits until cancelled; retry after an outage."""
        while True:
            try:
                self.set_ttls(await database.run_across_tenants(read_response_cache_ttls))
                await self.bill(database)
            except DatabaseUnavailableError:
                _LOG.warning("the tenants that cache were not refreshed")
            await asyncio.sleep(every_s)

    async def bill(self, database: Database) -> None:
        """Bill all hits so far, each once. Raises DatabaseUnavailableError; then call it again."""
        await self._bill_unconfirmed(database)
        hits, self._hits = self._hits, Counter()
        self._unconfirmed = billable_hits(hits)
        await self._bill_unconfirmed(database)

    async def _bill_unconfirmed(self, database: Database) -> None:
        if self._unconfirmed:
            await database.run_across_tenants(record_cache_hits, self._unconfirmed)
            self._unconfirmed = []

    def _drop(self, key: bytes) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= _size(key, entry.body)


def request_digest(endpoint: str, body: bytes) -> bytes | None:
    """Return a hash of the canonical request, or None when the response is not deterministic.

    A model that samples is deterministic only at temperature 0.
    """
    if len(body) > ENTRY_BYTES_MAX:
        return None
    try:
        request: Any = msgspec.json.decode(body)
        if not isinstance(request, dict) or not _is_deterministic(endpoint, request):
            return None
        canonical = msgspec.json.encode(request, order="deterministic")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # the engine refuses it
    return hashlib.sha256(endpoint.encode() + b"\0" + canonical).digest()


def _is_deterministic(endpoint: str, request: dict[str, Any]) -> bool:
    if endpoint not in _SAMPLED:
        return True
    temperature = request.get("temperature")
    return type(temperature) in {int, float} and temperature == 0


def _size(key: bytes, body: bytes) -> int:
    return len(key) + len(body) + _ENTRY_OVERHEAD_BYTES
