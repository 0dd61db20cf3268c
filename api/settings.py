"""Settings of the API role. Limits of lines and jobs belong to the intake role."""

from typing import ClassVar

from pydantic import Field

from core.settings import Settings

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


class ApiSettings(Settings):
    """Settings of one API process."""

    env_prefix: ClassVar[str] = "MILLRACE_API_"

    host: str = "127.0.0.1"
    """Address to listen on; the default is reachable only from this machine."""

    port: int = Field(default=8000, ge=1, le=65535)
    """Port to listen on."""

    public_url: str | None = Field(default=None, pattern=r"^https?://[^/]+(/[^?#]*)?$")
    """URL at which clients reach this API. Links in responses use it, never the Host header."""

    file_bytes_max: int = Field(default=GIB, ge=1, le=1024 * GIB)
    """Largest file that can be uploaded."""

    stored_bytes_max: int = Field(default=100 * GIB, ge=1)
    """Bytes that a tenant without its own quota may store."""

    files_max: int = Field(default=100_000, ge=1)
    """Files that a tenant may store, of any size."""

    open_batches_max: int = Field(default=10_000, ge=1)
    """Batches of a tenant that have not ended."""

    bulk_backlog_s_max: float | None = Field(default=None, gt=0)
    """Work of a pool's open batches, in seconds, above which new batches are refused; None: no
    limit. A tenant above its share is refused earlier."""

    json_bytes_max: int = Field(default=MIB, ge=KIB, le=64 * MIB)
    """Largest JSON request body."""

    json_body_timeout_s: float = Field(default=30.0, gt=0, le=600)
    """Time within which a JSON body must have arrived."""

    upload_idle_timeout_s: float = Field(default=30.0, gt=0, le=3600)
    """Window in which an upload must bring its minimum of bytes."""

    upload_bytes_per_s_min: int = Field(default=KIB, ge=1)
    """Minimum rate of an upload: one byte a second would keep its slot for ever."""

    uploads_max: int = Field(default=64, ge=1, le=10_000)
    """Concurrent uploads; one tenant may use half of them.

    Each uses a MiB of memory, and on S3 also a part in the object store's size.
    """

    download_idle_timeout_s: float = Field(default=60.0, gt=0, le=3600)
    """Time for a client to read a block of 1 MiB of a response, before it is disconnected."""

    requests_in_flight_max: int = Field(default=512, ge=1, le=100_000)
    """Concurrent requests, not counting online calls; one tenant may use half of them.

    Further ones are answered 503, or 429, with Retry-After.
    """

    object_threads: int = Field(default=32, ge=1, le=1000)
    """Threads that access the object store."""

    database_timeout_s: float = Field(default=8.0, gt=0, le=9.5)
    """Longest wait for Postgres; then the response is 503, so every request ends within 10 s."""

    key_cache_s: float = Field(default=4.0, ge=0, le=4)
    """How long an authenticated key is cached; keys in use are confirmed four times as often.

    A revoked key stops within it, however slow Postgres is.
    """

    failed_authentications_per_minute: int = Field(default=120, ge=0, le=1_000_000)
    """Requests without a valid key that one client address may make a minute, as a burst as well.

    Further ones are answered 429 with Retry-After and cost no query. 0 is no bound. Behind a proxy
    all clients share its address; keys that have worked in this process are not held up.
    """

    idempotency_keep_s: float = Field(default=86_400.0, ge=1, le=30 * 86_400)
    """How long the answer to a POST with an Idempotency-Key is replayed."""

    retry_protection_s: float = Field(default=600.0, ge=1, le=86_400)
    """How long a client that sends a retry count may retry a POST without an Idempotency-Key."""

    replay_wait_s: float = Field(default=2.0, ge=0, le=10)
    """How long a retry waits for an answer that is being written to Postgres; then 409."""

    wait_s_max: float = Field(default=300.0, ge=0, le=86_400)
    """Longest wait that `Prefer: wait` may request; then the response is 202."""

    followers_max: int = Field(default=256, ge=0, le=10_000)
    """Concurrent streams of results; one tenant may use half of them.

    Further ones are answered 503, or 429. Each uses a page of about 256 KiB.
    """

    follow_interval_s: float = Field(default=0.5, ge=0.02, le=10)
    """Pause between two queries for the progress of batches with streams: one for all of them."""

    follow_keep_alive_s: float = Field(default=15.0, ge=0.1, le=60)
    """Silence after which a stream of results sends a comment."""

    audit_log_timeout_s: float = Field(default=30.0, ge=0.1, le=600)
    """Longest reading of the log in one audit; the response shows whether it was enough."""

    head_timeout_s: float = Field(default=15.0, gt=0, le=600)
    """Time within which a request's head must have arrived."""

    head_bytes_max: int = Field(default=32 * KIB, ge=4 * KIB, le=MIB)
    """Largest request head."""

    keep_alive_s: int = Field(default=75, ge=1, le=3600)
    """How long an idle connection is kept."""

    shutdown_grace_s: int = Field(default=8, ge=1, le=3600)
    """Time for requests in flight to complete after SIGTERM."""

    access_log: bool = False
    """Log a line for each request: id, method, route, ids, status, seconds, address and key id.

    Bodies, queries and keys are never in it. Probes and `/metrics` are left out.
    """

    docs: bool = False
    """Serve the interactive documentation at /docs."""

    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Port for Prometheus, which replaces `/metrics` of the API itself; none by default."""
