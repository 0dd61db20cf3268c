"""Settings of the API role. Limits of lines and jobs are intake's."""

from typing import ClassVar

from pydantic import Field

from core.settings import Settings

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


class ApiSettings(Settings):
    """One API process."""

    env_prefix: ClassVar[str] = "MILLRACE_API_"

    host: str = "127.0.0.1"
    """Address to listen on; the default keeps a trial private."""

    port: int = Field(default=8000, ge=1, le=65535)
    """Port to listen on."""

    public_url: str | None = Field(default=None, pattern=r"^https?://[^/]+(/[^?#]*)?$")
    """Where clients reach this API; links in answers begin with it, never with a Host header."""

    file_bytes_max: int = Field(default=GIB, ge=1, le=1024 * GIB)
    """Largest file that can be uploaded."""

    stored_bytes_max: int = Field(default=100 * GIB, ge=1)
    """Bytes that a tenant without a limit of its own may store."""

    files_max: int = Field(default=100_000, ge=1)
    """Uploaded files that a tenant may have, of any size."""

    open_batches_max: int = Field(default=10_000, ge=1)
    """Batches of a tenant that have not ended."""

    json_bytes_max: int = Field(default=MIB, ge=KIB, le=64 * MIB)
    """Largest JSON request body."""

    json_body_timeout_s: float = Field(default=30.0, gt=0, le=600)
    """Time in which a JSON body must have arrived."""

    upload_idle_timeout_s: float = Field(default=30.0, gt=0, le=3600)
    """In each span of this length an upload must bring its least bytes, or it is cut."""

    upload_bytes_per_s_min: int = Field(default=KIB, ge=1)
    """Least rate of an upload: one byte a second would hold its place for ever."""

    uploads_max: int = Field(default=64, ge=1, le=10_000)
    """Uploads at once, half of them of one tenant.

    Each holds a MiB, and a part of the object store's size on S3."""

    download_idle_timeout_s: float = Field(default=60.0, gt=0, le=3600)
    """How long a client may take to accept a block of 1 MiB of an answer, before it is cut."""

    requests_in_flight_max: int = Field(default=512, ge=1, le=100_000)
    """Requests at once, beside online calls, half of them of one tenant.

    More are answered 503, or 429, with Retry-After."""

    object_threads: int = Field(default=32, ge=1, le=1000)
    """Threads that read and write objects."""

    database_timeout_s: float = Field(default=8.0, gt=0, le=9.5)
    """Longest wait for Postgres; then the answer is 503, so every request ends within 10 s."""

    key_cache_s: float = Field(default=4.0, ge=0, le=4)
    """How long a key that worked is believed; those in use are confirmed four times as often.

    A revoked key stops within it, however slow Postgres is."""

    idempotency_keep_s: float = Field(default=86_400.0, ge=1, le=30 * 86_400)
    """How long the answer to a POST with an Idempotency-Key is given again."""

    retry_protection_s: float = Field(default=600.0, ge=1, le=86_400)
    """How long a client that counts its tries may repeat a POST without a key of its own."""

    replay_wait_s: float = Field(default=2.0, ge=0, le=10)
    """How long a repeated call waits for an answer that is on its way to Postgres; then 409."""

    wait_s_max: float = Field(default=300.0, ge=0, le=86_400)
    """Longest wait that `Prefer: wait` may ask for; then the answer is 202."""

    followers_max: int = Field(default=256, ge=0, le=10_000)
    """Streams of results at once, half of them of one tenant; more are answered 503, or 429.

    Each holds a page of about 256 KiB."""

    follow_interval_s: float = Field(default=0.5, ge=0.02, le=10)
    """Pause between two looks at the batches that are followed: one statement for all of them."""

    follow_keep_alive_s: float = Field(default=15.0, ge=0.1, le=60)
    """Silence after which a stream of results sends a comment."""

    audit_log_timeout_s: float = Field(default=30.0, ge=0.1, le=600)
    """Longest reading of the log in one audit; the answer says when that was not enough."""

    head_timeout_s: float = Field(default=15.0, gt=0, le=600)
    """Time in which a request's head must have arrived."""

    head_bytes_max: int = Field(default=32 * KIB, ge=4 * KIB, le=MIB)
    """Largest request head."""

    keep_alive_s: int = Field(default=75, ge=1, le=3600)
    """How long an idle connection is kept."""

    shutdown_grace_s: int = Field(default=8, ge=1, le=3600)
    """Time that requests in flight have to end on SIGTERM."""

    docs: bool = False
    """Serve the interactive documentation at /docs."""

    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Where Prometheus finds this process beside `/metrics` of the API itself; none by default."""
