"""Counts failed authentications, and bounds them for each client address.

A failure takes a token from the bucket of its address. While that is empty, further requests of the
address are refused without a query, except those with a key that works or worked before: behind a
proxy all clients have one address, and a stranger must not lock them out.
"""

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address, ip_network
from math import ceil
from typing import Final

from api import metrics
from api.http.errors import ApiError
from api.runtime.token_bucket import TokenBucket
from core.clock import Clock
from tenancy.key_secrets import secret_hash

ADDRESSES_MAX: Final = 10_000
"""Addresses in memory. The one whose last failure is oldest is evicted first."""

KNOWN_KEYS_MAX: Final = 10_000
"""Keys in memory that have worked. The one whose last use is oldest is evicted first."""

_RETRY_AFTER_S_MAX: Final = 59  # official clients ignore 60 and more


class FailedAttempts:
    """The failures of one API process. It runs on the event loop."""

    def __init__(self, per_minute_max: int, clock: Clock) -> None:
        """An address may fail `per_minute_max` times at once and a minute; 0 is no bound."""
        self._per_minute_max, self._clock = per_minute_max, clock
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()
        self._known_keys: OrderedDict[bytes, None] = OrderedDict()

    def check(self, address: str | None, secret: str | None) -> None:
        """Raise ApiError (429) when the address has failed too often.

        It passes a secret that has worked in this process before.
        """
        bucket = self._buckets.get(_group(address))
        if bucket is None or (secret is not None and secret_hash(secret) in self._known_keys):
            return
        wait_s = bucket.wait_s(1, now_s=self._clock.monotonic_s())
        if wait_s > 0:
            metrics.AUTHENTICATION_FAILURES.labels("limited").inc()
            raise ApiError(
                429,
                "Too many requests without a valid key came from this address.",
                kind="rate_limit_exceeded",
                code="too_many_failed_authentications",
                headers={"retry-after": str(min(_RETRY_AFTER_S_MAX, ceil(wait_s)))},
            )

    def add(self, address: str | None, secret: str | None, reason: str) -> None:
        """Count a failure."""
        metrics.AUTHENTICATION_FAILURES.labels(reason).inc()
        if secret is not None:
            self._known_keys.pop(secret_hash(secret), None)
        if not self._per_minute_max:
            return
        group, now_s = _group(address), self._clock.monotonic_s()
        bucket = self._buckets.setdefault(group, TokenBucket(self._per_minute_max, now_s=now_s))
        bucket.consume(1, now_s=now_s)
        self._buckets.move_to_end(group)
        if len(self._buckets) > ADDRESSES_MAX:
            self._buckets.popitem(last=False)

    def add_success(self, secret: str) -> None:
        """Remember that a secret works."""
        digest = secret_hash(secret)
        self._known_keys[digest] = None
        self._known_keys.move_to_end(digest)
        if len(self._known_keys) > KNOWN_KEYS_MAX:
            self._known_keys.popitem(last=False)


def _group(address: str | None) -> str:
    """Return what shares a bucket: an address, or the network of an IPv6 host."""
    try:
        found = ip_address(address or "")
    except ValueError:  # a Unix socket
        return address or "unknown"
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ip_network((int(found), 64), strict=False))
