"""Who is calling: the tenant comes from the key alone."""

from dataclasses import dataclass
from typing import Final

from core.clock import Clock
from tenancy.api_keys import Principal, secret_hash

_ENTRIES_MAX: Final = 10_000


@dataclass(slots=True)
class _Known:
    """Whose secret it was at a moment."""

    principal: Principal
    until_s: float  # by the monotonic clock; then it must be looked up again
    was_used: bool = True  # since the last look


class KeyCache:
    """Remembers for moments which secret was whose, so that pollers cost Postgres nothing.

    Refusals are not remembered: a key works as soon as it is made. Keys in use are confirmed in
    the background before their time is up, so an active key never waits for Postgres.
    """

    def __init__(self, *, ttl_s: float, clock: Clock) -> None:
        """`ttl_s` bounds how long a revoked key goes on."""
        self._ttl_s = ttl_s
        self._clock = clock
        self._known: dict[bytes, _Known] = {}

    def find(self, secret: str) -> Principal | None:
        """Return whose secret it was a moment ago."""
        known = self._known.get(secret_hash(secret))
        if known is None or known.until_s <= self._clock.monotonic_s():
            return None
        known.was_used = True
        return known.principal

    def remember(self, secret: str, principal: Principal, asked_s: float) -> None:
        """Keep an answer that was asked for at `asked_s` of this clock's monotonic time."""
        key = secret_hash(secret)
        self._known.pop(key, None)  # so that the oldest answer is the first
        if len(self._known) >= _ENTRIES_MAX:
            del self._known[next(iter(self._known))]
        self._known[key] = _Known(principal, asked_s + self._ttl_s)

    def in_use(self) -> list[bytes]:
        """Return the hashes of secrets that were used since the last look; forget what is stale."""
        now_s = self._clock.monotonic_s()
        self._known = {key: known for key, known in self._known.items() if known.until_s > now_s}
        used = [key for key, known in self._known.items() if known.was_used]
        for key in used:
            self._known[key].was_used = False
        return used

    def confirm(self, asked: list[bytes], working: dict[bytes, Principal], asked_s: float) -> None:
        """Believe `working` again from `asked_s` on, and no other of `asked` any more."""
        for key in asked:
            principal = working.get(key)
            if principal is None:
                self._known.pop(key, None)
            elif key in self._known:
                known = self._known[key]
                known.principal, known.until_s = principal, asked_s + self._ttl_s

    def now_s(self) -> float:
        """Return this clock's monotonic time."""
        return self._clock.monotonic_s()


def offered_secret(authorization: str | None, x_api_key: str | None) -> str | None:
    """Return the secret of `Authorization: Bearer …`, or else of `X-Api-Key`."""
    scheme, _, credentials = (authorization or "").partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return credentials.strip()
    return (x_api_key or "").strip() or None
