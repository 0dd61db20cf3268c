"""What admission knows: rate limits of tenants, capacity of the pools and execution times.

Callers of the rate limits pass the time. `call_admission` decides by predicted wait.
"""

from collections import OrderedDict
from dataclasses import dataclass
from math import ceil
from typing import Final
from uuid import UUID

from api.http.errors import ApiError
from api.online.await_reply.replica_liveness import ReplicaLiveness
from api.online.call_errors import retry_after_seconds
from api.online.exchange import RawHeaders
from api.runtime.token_bucket import TokenBucket
from jobs.expansion.pool_capacity import sum_by_pool
from jobs.expansion.pool_versions import PoolVersions, has_versions, required_text, versions_by_pool
from jobs.expansion.windows import PoolCapacity
from topics.records.eligibility import is_asleep, is_starting
from topics.records.received_record import ReceivedRecord
from topics.records.records import Capacity, JobRef
from topics.tail_readers.tail_reader_thread import decode_records

SILENCE_S_MAX: Final = 3.0
"""A replica reports at least every second. One without a report for this long is unavailable."""

_JOB_CLASS: Final = "interactive"
_NEWEST_WEIGHT: Final = 0.1  # of the newest call in the moving average


class PoolStates:
    """The newest capacity report of every replica.

    One thread calls `apply_records`; any thread may call the other methods.
    """

    def __init__(self, *, since_s: float) -> None:
        """`since_s`: monotonic time from which on the topic is read."""
        self._since_s = since_s
        self._reports: dict[tuple[str, str], tuple[Capacity, float]] = {}  # by replica, class
        self._pools: dict[str, PoolCapacity] = {}  # replaced as a whole, so readers need no lock
        self._versions: PoolVersions = {}  # the same
        self._last_seen_s: dict[str, float] = {}  # by pool, of any report
        self.replicas = ReplicaLiveness()

    def apply_records(self, records: list[ReceivedRecord], *, now_s: float) -> None:
        """Apply records that arrived now, and drop silent replicas. Raises SchemaTooNewError."""
        for _, capacity in decode_records(Capacity, records):
            if capacity is None:
                continue
            if not is_starting(capacity) and not is_asleep(capacity):
                self._last_seen_s[capacity.pool] = now_s
                self.replicas.record_capacity(capacity.replica_id, now_s=now_s)
            self._reports[capacity.replica_id, capacity.job_class] = (capacity, now_s)
        self._reports = {
            place: (capacity, received_s)
            for place, (capacity, received_s) in self._reports.items()
            if now_s - received_s <= SILENCE_S_MAX
        }
        of_calls = [
            capacity
            for (_, job_class), (capacity, _) in self._reports.items()
            if job_class == _JOB_CLASS and not is_asleep(capacity)
        ]
        self._pools, self._versions = sum_by_pool(of_calls), versions_by_pool(of_calls)

    def reports(self, *, now_s: float) -> list[Capacity]:
        """Return the newest report of each replica and class that is not silent."""
        reports = self._reports  # replaced as a whole
        return [
            capacity
            for capacity, received_s in reports.values()
            if now_s - received_s <= SILENCE_S_MAX
        ]

    def find(self, pool: str) -> PoolCapacity | None:
        """Return the capacity of a pool, or None when none of its replicas accepts calls."""
        return self._pools.get(pool)

    def serves(self, job: JobRef) -> bool:
        """Whether a replica accepts calls of the pool and model version of a job."""
        if job.pool not in self._pools:
            return False
        if job.base_version and job.pool not in self._versions:
            return False  # replicas that list no versions take no adapters
        needed = required_text(job.model_version, job.base_version)
        return has_versions(self._versions, job.pool, needed)

    def last_seen_s(self, pool: str) -> float:
        """Return when a replica of the pool last reported, draining replicas included."""
        return self._last_seen_s.get(pool, self._since_s)

    def is_warm(self, *, now_s: float) -> bool:
        """Whether the topic has been read for long enough that a missing report is meaningful."""
        return now_s - self._since_s > SILENCE_S_MAX


class ExecutionTimes:
    """Moving average of the execution time of calls, by pool."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def seconds(self, pool: str) -> float:
        """Return the average of a pool; 0 while it is unknown."""
        return self._seconds.get(pool, 0.0)

    def add(self, pool: str, execution_s: float) -> None:
        """Add a call that ended successfully."""
        average_s = self._seconds.get(pool, execution_s)
        self._seconds[pool] = average_s + (execution_s - average_s) * _NEWEST_WEIGHT


_TENANTS_MAX: Final = 100_000  # the least recently used one is evicted


@dataclass(frozen=True, slots=True)
class TenantBuckets:
    """The two buckets of a tenant."""

    requests: TokenBucket
    tokens: TokenBucket

    def admit(self, token_count: int, *, now_s: float) -> int:
        """Charge a call and return the charged tokens, at most the size of the bucket.

        A larger estimate may be far too high. Raises ApiError (429) with a retry time; then nothing
        is charged.
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

    def settle(self, charged: int, used: int, *, now_s: float) -> None:
        """Replace charged tokens by the used ones."""
        self.tokens.consume(used - charged, now_s=now_s)

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


def correct_limit_headers(headers: RawHeaders, buckets: TenantBuckets, *, now_s: float) -> None:
    """Let the `x-ratelimit-*` among `headers` show what `buckets` hold now."""
    corrected = dict(buckets.headers(now_s=now_s))
    headers[:] = [(name, corrected.get(name, value)) for name, value in headers]


def _duration(seconds: float) -> bytes:
    """Format a duration like OpenAI's API: `12ms`, `1s`, `6m0s`."""
    if seconds < 1:
        return b"%dms" % ceil(seconds * 1000)
    minutes, rest = divmod(ceil(seconds), 60)
    return b"%dm%ds" % (minutes, rest) if minutes else b"%ds" % rest
