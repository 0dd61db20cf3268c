"""Settings of online calls."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, TypeAlias

from pydantic import BeforeValidator, Field

from api.settings import KIB, MIB
from core.settings import Settings
from registry.models import ENDPOINTS


def _by_endpoint(text: object) -> object:
    """Parse `ENDPOINT=SECONDS,…`. Raises ValueError."""
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


def _ratios(text: object) -> object:
    """Parse `RATIO,RATIO,RATIO`, which ascend. Raises ValueError."""
    if not isinstance(text, str):
        return text
    found = tuple(float(part) for part in text.split(","))
    if list(found) != sorted(found):
        raise ValueError("give three ratios that ascend")
    return found


_Ratio: TypeAlias = Annotated[float, Field(gt=0, le=1)]
ShedRatios: TypeAlias = Annotated[tuple[_Ratio, _Ratio, _Ratio], BeforeValidator(_ratios)]


class OnlineSettings(Settings):
    """Settings for the online calls of one API process."""

    env_prefix: ClassVar[str] = "MILLRACE_ONLINE_"

    bytes_max: int = Field(default=4 * MIB, ge=KIB, le=64 * MIB)
    """Largest body of an online call."""

    bodies_bytes_max: int = Field(default=256 * MIB, ge=64 * MIB)
    """Memory limit of request bodies, from their arrival until their records are sent.

    One tenant may use half of it, and always one body of full size.
    """

    body_timeout_s: float = Field(default=30.0, gt=0, le=600)
    """Time within which a body must have arrived."""

    call_timeout_s: float = Field(default=600.0, ge=0.001, le=86_400)
    """Longest and default timeout of a call."""

    background_timeout_s: float = Field(default=86_400.0, ge=0.001, le=30 * 86_400)
    """The same for calls that may be answered by a job: `background` and `Prefer: wait`."""

    queue_timeout_s: float | None = Field(default=None, ge=0.001, le=86_400)
    """Longest wait for an execution, of calls that are not answered by a job; None: no limit."""

    timeouts_s: EndpointSeconds = Field(default_factory=dict)
    """Longest timeout by endpoint: `/v1/embeddings=30,/v1/rerank=60`."""

    waits_s: EndpointSeconds = Field(default_factory=dict)
    """Default `Prefer: wait=N` by endpoint, in whole seconds."""

    open_calls_max: int = Field(default=5000, ge=1, le=1_000_000)
    """Open calls in this process."""

    open_calls_per_tenant_max: int = Field(default=4000, ge=1, le=1_000_000)
    """Open calls of one tenant: less than all, so that no tenant can fill the process alone."""

    requests_per_minute: int = Field(default=600_000, ge=1, le=10**9)
    """Calls a minute that a tenant may make to this process."""

    tokens_per_minute: int = Field(default=1_000_000_000, ge=1, le=10**12)
    """Tokens a minute that a tenant may request of this process, prompt plus output."""

    predicted_wait_s_max: float = Field(default=120.0, gt=0, le=86_400)
    """Longest predicted wait of a call for its execution. Above it the call is refused."""

    shed_ratios: ShedRatios = (0.25, 0.5, 0.75)
    """Parts of `predicted_wait_s_max` above which work is refused, in ascending order.

    First new batches of tenants above their share, then all new batches, then calls of tenants
    above their share.
    """

    degrade_wait_s: float = Field(default=10.0, gt=0, le=86_400)
    """Predicted wait above which the output of calls is capped, of tenants that allow it."""

    retry_after_s_max: int = Field(default=59, ge=1, le=59)
    """Largest `Retry-After`; official clients ignore 60. A longer wait is promised no place."""

    retry_grace_s: float = Field(default=5.0, ge=0, le=60)
    """How long the place of a refused call is kept after its `Retry-After`."""

    retry_promises_max: int = Field(default=20_000, ge=0, le=1_000_000)
    """Refused calls whose place is kept."""

    waking_calls_max: int = Field(default=1000, ge=0, le=1_000_000)
    """Calls of this process that may wait for one pool that is being started."""

    stream_buffer_bytes: int = Field(default=256 * KIB, ge=KIB, le=64 * MIB)
    """Bytes of a stream that may wait for a slow reader before the stream is cut off."""

    slow_reader_s: float = Field(default=30.0, gt=0, le=60)
    """How long a piece of a stream or a block of a response may wait for its reader.

    Then the stream is cut off, or the connection of the response dropped.
    """

    answers_bytes_max: int = Field(default=256 * MIB, ge=64 * MIB)
    """Memory limit of complete responses above 64 KiB that wait for their readers.

    Responses that show jobs and lists of files count as well. One tenant may use half of it. A
    response beyond the limit is refused.
    """

    keep_alive_s: float = Field(default=10.0, ge=0.1, le=60)
    """Silence on a stream after which a comment is sent."""

    recordings_bytes_max: int = Field(default=256 * MIB, ge=8 * MIB)
    """Memory limit of recordings of streams with a key; one tenant may use half of it."""

    log_patience_s: float = Field(default=2.0, ge=0.1, le=60)
    """Age of the oldest unacknowledged record of a partition above which new calls avoid it.

    They are refused when no partition is left, or the heartbeats are as old.
    """

    routes_refresh_s: float = Field(default=2.0, ge=0.1, le=60)
    """How often models are refreshed in the background."""

    cache_bytes_max: int = Field(default=64 * MIB, ge=MIB, le=64 * 1024 * MIB)
    """Memory limit of cached responses, of the tenants that enabled the cache."""
