"""Who is calling: the tenant comes from the key alone."""

from typing import Final

from core.clock import Clock
from tenancy.api_keys import Principal, secret_hash

_ENTRIES_MAX: Final = 10_000


class KeyCache:
    """Remembers for moments which secret was whose, so that pollers cost Postgres nothing.

    Refusals are not remembered: a key works as soon as it is made.
    """

    def __init__(self, *, ttl_s: float, clock: Clock) -> None:
        """`ttl_s` bounds how long a revoked key goes on."""
        self._ttl_s = ttl_s
        self._clock = clock
        self._known: dict[bytes, tuple[Principal, float]] = {}

    def find(self, secret: str) -> Principal | None:
        """Return whose secret it was a moment ago."""
        known = self._known.get(secret_hash(secret))
        if known is None or known[1] <= self._clock.monotonic_s():
            return None
        return known[0]

    def remember(self, secret: str, principal: Principal, asked_s: float) -> None:
        """Keep an answer that was asked for at `asked_s` of this clock's monotonic time."""
        key = secret_hash(secret)
        self._known.pop(key, None)  # so that the oldest answer is the first
        if len(self._known) >= _ENTRIES_MAX:
            del self._known[next(iter(self._known))]
        self._known[key] = (principal, asked_s + self._ttl_s)

    def now_s(self) -> float:
        """Return this clock's monotonic time."""
        return self._clock.monotonic_s()


def offered_secret(authorization: str | None, x_api_key: str | None) -> str | None:
    """Return the secret of `Authorization: Bearer …`, or else of `X-Api-Key`."""
    scheme, _, credentials = (authorization or "").partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return credentials.strip()
    return (x_api_key or "").strip() or None
