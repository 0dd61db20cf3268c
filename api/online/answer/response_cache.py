"""Answers that may be given again: to the same question, of the same tenant, to the same version.

Only for tenants that asked for it, only where the answer does not depend on chance, and only in the
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
from api.online.calls import CompleteResponse, PlannedCall
from api.runtime.database import Database, DatabaseUnavailableError
from core.clock import Clock
from tenancy.cached_answers import (
    BilledHits,
    CacheHits,
    add_cache_hits,
    response_cache_ttls,
    to_bill,
)

_LOG = logging.getLogger(__name__)

HIT: Final = (b"x-millrace-cache", b"hit")
MISS: Final = (b"x-millrace-cache", b"miss")

ENTRY_BYTES_MAX: Final = 256 * 1024
"""A longer question is not looked up, a longer answer not kept."""

_ENTRY_BYTES_MORE: Final = 500  # what an entry costs beside its key and body
_SAMPLED: Final = frozenset({"/v1/chat/completions", "/v1/completions"})


class _Key(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """What an answer depends on, and how long it lives: another time to live is another key."""

    ttl_s: int
    tenant_id: UUID
    model: str
    version: str
    digest: bytes


_KEY: Final = msgspec.msgpack.Decoder(_Key)


@dataclass(frozen=True, slots=True)
class _Entry:
    body: bytes
    expires_s: float  # monotonic


class ResponseCache:
    """Least recently used first out, bounded in bytes. All on the event loop.

    A key stands for tenant, version and canonical body.
    """

    def __init__(self, clock: Clock, *, bytes_max: int) -> None:
        """No tenant is known yet, so nothing is kept before the first look at Postgres."""
        self._clock, self._bytes_max = clock, bytes_max
        self._ttls: Mapping[UUID, int] = {}
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._bytes = 0
        self._hits: Counter[CacheHits] = Counter()
        self._unheard: list[BilledHits] = []  # perhaps on the bill already

    def allow(self, ttls: Mapping[UUID, int]) -> None:
        """Keep answers of these tenants, for so many seconds, and of no other."""
        self._ttls = ttls

    def key_of(self, call: PlannedCall) -> bytes | None:
        """Return the key of a call whose answer may be kept, or None."""
        tenant_id, parsed = call.principal.tenant_id, call.parsed
        ttl_s = self._ttls.get(tenant_id)
        if ttl_s is None or call.is_durable or parsed.stream:
            return None
        digest = request_digest(parsed.endpoint, parsed.body)
        if digest is None:
            return None
        return msgspec.msgpack.encode(
            _Key(ttl_s, tenant_id, call.route.name, call.route.version, digest)
        )

    def find(self, key: bytes) -> CompleteResponse | None:
        """Return the answer that was kept, and count it for the bill."""
        entry = self._entries.get(key)
        if entry is None or entry.expires_s <= self._clock.monotonic_s():
            metrics.CACHE.labels("miss").inc()
            return None
        self._entries.move_to_end(key)
        metrics.CACHE.labels("hit").inc()
        said = _KEY.decode(key)
        self._hits[CacheHits(said.tenant_id, said.model, said.version)] += 1
        return CompleteResponse(200, entry.body, [HIT])

    def keep(self, key: bytes, answer: CompleteResponse) -> None:
        """Remember a good answer for as long as its tenant allows."""
        if answer.status != 200 or len(answer.body) > ENTRY_BYTES_MAX:
            return
        self._drop(key)
        expires_s = self._clock.monotonic_s() + _KEY.decode(key).ttl_s
        self._entries[key] = _Entry(answer.body, expires_s)
        self._bytes += _size(key, answer.body)
        while self._bytes > self._bytes_max:
            self._drop(next(iter(self._entries)))
        metrics.CACHE_BYTES.set(self._bytes)

    async def keep_fresh(self, database: Database, every_s: float) -> None:
        """Learn who wants it, and bill hits, until cancelled; an outage leaves what is known."""
        while True:
            try:
                self.allow(await database.run_across_tenants(response_cache_ttls))
                await self.bill(database)
            except DatabaseUnavailableError:
                _LOG.warning("the tenants that cache were not refreshed")
            await asyncio.sleep(every_s)

    async def bill(self, database: Database) -> None:
        """Put all hits so far on the bill, each once. Raises DatabaseUnavailableError; then try again."""
        await self._bill_unheard(database)
        hits, self._hits = self._hits, Counter()
        self._unheard = to_bill(hits)
        await self._bill_unheard(database)

    async def _bill_unheard(self, database: Database) -> None:
        if self._unheard:
            await database.run_across_tenants(add_cache_hits, self._unheard)
            self._unheard = []

    def _drop(self, key: bytes) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= _size(key, entry.body)


def request_digest(endpoint: str, body: bytes) -> bytes | None:
    """Return the hash of a body, the same for every way to write it; None when chance decides.

    A model that samples does so unless the body says that its temperature is 0.
    """
    if len(body) > ENTRY_BYTES_MAX:
        return None
    try:
        question: Any = msgspec.json.decode(body)
        if not isinstance(question, dict) or not _is_certain(endpoint, question):
            return None
        canonical = msgspec.json.encode(question, order="deterministic")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # the engine answers for it
    return hashlib.sha256(endpoint.encode() + b"\0" + canonical).digest()


def _is_certain(endpoint: str, question: dict[str, Any]) -> bool:
    if endpoint not in _SAMPLED:
        return True
    temperature = question.get("temperature")
    return type(temperature) in {int, float} and temperature == 0


def _size(key: bytes, body: bytes) -> int:
    return len(key) + len(body) + _ENTRY_BYTES_MORE
