"""Rate limits of calls and tokens a minute: token buckets by tenant. The caller passes the time."""

from collections import OrderedDict
from dataclasses import dataclass
from math import ceil
from typing import Final
from uuid import UUID

from api.http.errors import ApiError
from api.online.call_errors import retry_after_seconds
from api.online.exchange import RawHeaders

_TENANTS_MAX: Final = 100_000  # the least recently used one is evicted
_MINUTE_S: Final = 60.0


class TokenBucket:
    """A token bucket that fills within a minute. Costs known afterwards may overdraw it."""

    __slots__ = ("_at_s", "_level", "size")

    def __init__(self, size: int, *, now_s: float) -> None:
        """The bucket starts full."""
        self.size = size
        self._level = float(size)
        self._at_s = now_s

    def level(self, *, now_s: float) -> float:
        """Return the tokens in the bucket."""
        filled = self._level + (now_s - self._at_s) * self.size / _MINUTE_S
        self._level, self._at_s = min(float(self.size), filled), now_s
        return self._level

    def consume(self, amount: float, *, now_s: float) -> None:
        """Consume `amount`; a negative amount refunds."""
        self._level = min(float(self.size), self.level(now_s=now_s) - amount)

    def wait_s(self, amount: float, *, now_s: float) -> float:
        """Return the time until `amount` is available, or until the bucket is full."""
        missing = min(amount, float(self.size)) - self.level(now_s=now_s)
        return max(0.0, missing * _MINUTE_S / self.size)


@dataclass(frozen=True, slots=True)
class TenantBuckets:
    """The two buckets of a tenant."""

    requests: TokenBucket
    tokens: TokenBucket

    def admit(self, token_count: int, *, now_s: float) -> int:
        """Charge a call and return the charged tokens, at most the size of the bucket.

        A larger estimate may be far too high and might never be corrected. Raises ApiError (429)
        with a retry time; then nothing is charged.
        """
        token_count = min(token_count, self.tokens.size)
        requests_s = self.requests.wait_s(1, now_s=now_s)
        wait_s = max(requests_s, self.tokens.wait_s(token_count, now_s=now_s))
        if wait_s > 0:
            what = "requests" if requests_s == wait_s else "tokens"
            shown = {name.decode(): value.decode() for name, value in self.headers(now_s=now_s)}
            raise ApiError(
                429,
                f"Rate limit reached for {what} per minute.",
                kind="rate_limit_exceeded",
                code="rate_limit_exceeded",
                headers={**shown, "retry-after": str(retry_after_seconds(wait_s))},
            )
        self.requests.consume(1, now_s=now_s)
        self.tokens.consume(token_count, now_s=now_s)
        return token_count

    def settle(self, estimated: int, used: int, *, now_s: float) -> None:
        """Replace an estimated charge by the used tokens."""
        self.tokens.consume(used - estimated, now_s=now_s)

    def headers(self, *, now_s: float) -> RawHeaders:
        """Return the `x-ratelimit-*` headers."""
        requests, tokens = self.requests, self.tokens
        return [
            (b"x-ratelimit-limit-requests", b"%d" % requests.size),
            (b"x-ratelimit-limit-tokens", b"%d" % tokens.size),
            (b"x-ratelimit-remaining-requests", b"%d" % max(0, requests.level(now_s=now_s))),
            (b"x-ratelimit-remaining-tokens", b"%d" % max(0, tokens.level(now_s=now_s))),
            (b"x-ratelimit-reset-requests", _duration(requests.wait_s(requests.size, now_s=now_s))),
            (b"x-ratelimit-reset-tokens", _duration(tokens.wait_s(tokens.size, now_s=now_s))),
        ]


class Charge:
    """The estimated charge of a call, until it is settled or kept, whichever comes first."""

    __slots__ = ("_estimated", "_is_open", "buckets")

    def __init__(self, buckets: TenantBuckets, estimated: int) -> None:
        """`estimated` tokens were charged to `buckets`."""
        self.buckets, self._estimated = buckets, estimated
        self._is_open = True

    def settle(self, used: int, *, now_s: float) -> None:
        """Charge the used tokens instead of the estimate."""
        if self._is_open:
            self._is_open = False
            self.buckets.settle(self._estimated, used, now_s=now_s)

    def keep_estimate(self) -> None:
        """Make the estimate final: the used tokens will not be known in this process."""
        self._is_open = False


class RateLimits:
    """The buckets of every tenant that called recently."""

    def __init__(self, *, requests_per_minute: int, tokens_per_minute: int) -> None:
        """All tenants have the same limits."""
        self._requests, self._tokens = requests_per_minute, tokens_per_minute
        self._tenants: OrderedDict[UUID, TenantBuckets] = OrderedDict()

    def of_tenant(self, tenant_id: UUID, *, now_s: float) -> TenantBuckets:
        """Return a tenant's buckets."""
        buckets = self._tenants.get(tenant_id)
        if buckets is None:
            buckets = TenantBuckets(
                TokenBucket(self._requests, now_s=now_s), TokenBucket(self._tokens, now_s=now_s)
            )
            self._tenants[tenant_id] = buckets
            if len(self._tenants) > _TENANTS_MAX:
                self._tenants.popitem(last=False)
        else:
            self._tenants.move_to_end(tenant_id)
        return buckets


def _duration(seconds: float) -> bytes:
    """Format a duration like OpenAI's API: `12ms`, `1s`, `6m0s`."""
    if seconds < 1:
        return b"%dms" % ceil(seconds * 1000)
    minutes, rest = divmod(ceil(seconds), 60)
    return b"%dm%ds" % (minutes, rest) if minutes else b"%ds" % rest
