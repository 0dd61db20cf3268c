"""Settings of online calls."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, TypeAlias

from pydantic import BeforeValidator, Field

from core.settings import Settings
from registry.models import ENDPOINTS

KIB = 1024
MIB = 1024 * KIB


def _by_endpoint(text: object) -> object:
    """Read `ENDPOINT=SECONDS,…`. Raises ValueError."""
    if not isinstance(text, str):
        return text
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        endpoint, _, seconds = part.partition("=")
        if endpoint not in ENDPOINTS:
            raise ValueError(f"give {', '.join(ENDPOINTS)}, each as ENDPOINT=SECONDS")
        found[endpoint] = float(seconds)
    return found


_Seconds: TypeAlias = Annotated[float, Field(ge=0, le=86_400)]
EndpointSeconds: TypeAlias = Annotated[Mapping[str, _Seconds], BeforeValidator(_by_endpoint)]


class OnlineSettings(Settings):
    """The online half of one API process."""

    env_prefix: ClassVar[str] = "MILLRACE_ONLINE_"

    bytes_max: int = Field(default=4 * MIB, ge=KIB, le=64 * MIB)
    """Largest body of an online call."""

    bodies_bytes_max: int = Field(default=256 * MIB, ge=64 * MIB)
    """Bytes of bodies held at once, from their arrival until they are on the log.

    A tenant takes half of them at most, and no less than one body may have."""

    body_timeout_s: float = Field(default=30.0, gt=0, le=600)
    """Time in which a body must have arrived."""

    call_timeout_s: float = Field(default=600.0, ge=0.001, le=86_400)
    """Longest time a call may take, and what it gets without a wish of its own."""

    background_timeout_s: float = Field(default=86_400.0, ge=0.001, le=30 * 86_400)
    """The same for calls that may be answered by a job: `background`, and `Prefer: wait`."""

    queue_timeout_s: float | None = Field(default=None, ge=0.001, le=86_400)
    """Longest wait for an execution, of calls that are not answered by a job; None: no bound."""

    timeouts_s: EndpointSeconds = Field(default_factory=dict)
    """Longest time of the calls of single routes: `/v1/embeddings=30,/v1/rerank=60`."""

    waits_s: EndpointSeconds = Field(default_factory=dict)
    """Routes whose calls are taken as if they said `Prefer: wait=N`, with their whole seconds."""

    open_calls_max: int = Field(default=5000, ge=1, le=1_000_000)
    """Calls that wait for an answer at once in this process."""

    open_calls_per_tenant_max: int = Field(default=4000, ge=1, le=1_000_000)
    """The same, of one tenant: less than all, so that none fills the process alone."""

    requests_per_minute: int = Field(default=600_000, ge=1, le=10**9)
    """Calls a minute that a tenant may make to this process."""

    tokens_per_minute: int = Field(default=1_000_000_000, ge=1, le=10**12)
    """Tokens a minute that a tenant may ask this process for, prompt plus output."""

    stream_buffer_bytes: int = Field(default=256 * KIB, ge=KIB, le=64 * MIB)
    """What may wait for a slow reader of a stream, before the stream is cut."""

    slow_reader_s: float = Field(default=30.0, gt=0, le=60)
    """How long a piece of a stream or a block of an answer may wait for its reader.

    Then the stream is cut, or the connection of the answer dropped."""

    answers_bytes_max: int = Field(default=256 * MIB, ge=64 * MIB)
    """Bytes of whole answers above 64 KiB that wait for their readers at once.

    Those of jobs and lists of files count as well. Half of it at most are those of one tenant; an
    answer without room is refused."""

    keep_alive_s: float = Field(default=10.0, ge=0.1, le=60)
    """Silence on a stream after which a comment is sent."""

    recordings_bytes_max: int = Field(default=256 * MIB, ge=8 * MIB)
    """Bytes of streams with a key remembered at once, half of it at most of one tenant."""

    log_patience_s: float = Field(default=2.0, ge=0.1, le=60)
    """Age of the oldest unacknowledged record above which new calls are refused."""

    routes_refresh_s: float = Field(default=2.0, ge=0.1, le=60)
    """How often models are looked up in the background."""

    cache_bytes_max: int = Field(default=64 * MIB, ge=MIB, le=64 * 1024 * MIB)
    """Memory for answers that may be given again, of the tenants that asked for it."""
