"""Settings of webhooks, read by the role `webhooks` and by the API."""

import ipaddress
from typing import ClassVar

from pydantic import Field, SecretStr, field_validator

from core.secret_keys import decoded_keys
from core.settings import Settings


class WebhookSettings(Settings):
    """Which addresses may be contacted, how secrets are encrypted, and limits of delivery."""

    env_prefix: ClassVar[str] = "MILLRACE_WEBHOOKS_"

    secret_key: SecretStr | None = None
    """Base64 of 32 random bytes that encrypt signing secrets at rest; without it there are no webhooks. Several, separated by commas: the first encrypts, all decrypt."""  # noqa: E501

    allow_private: bool = False
    """Development only: permits private addresses and plain `http` URLs."""

    denied_networks: str = ""
    """Further networks that are not contacted, separated by commas, for example your own."""

    timeout_s: float = Field(default=20.0, gt=0, le=60)
    """Longest attempt: look-up, connect, TLS, request and the head of the response."""

    slots_max: int = Field(default=1024, ge=4, le=4096)
    """Attempts at once per process. Queues whose last attempt failed get half of them at most."""

    lane_slots_max: int = Field(default=4, ge=1, le=256)
    """Attempts at once per delivery queue (column `lane`): those of one endpoint, or of a tenant's
    callbacks to one host."""

    tenant_slots_max: int = Field(default=256, ge=1, le=4096)
    """Attempts at once per tenant and process, more than its slow endpoints can occupy."""

    breaker_failures: int = Field(default=5, ge=1, le=1000)
    """Consecutive failures that open a queue's circuit breaker, for 5 s doubling to 5 min."""

    disable_after_days: float = Field(default=5.0, gt=0, le=90)
    """Days of failed attempts only, after which an endpoint is disabled."""

    endpoints_max: int = Field(default=50, ge=1, le=1000)
    """Endpoints of one tenant."""

    retention_days: int = Field(default=30, ge=4, le=3650)
    """Days that messages and their attempts are kept and can be replayed."""

    time_scale: float = Field(default=1.0, gt=0, le=1)
    """Multiplies every wait between attempts. For tests: 0.001 turns hours into seconds."""

    look_interval_s: float = Field(default=0.5, ge=0.01, le=10)
    """Longest wait between two claims of due deliveries."""

    watch_interval_s: float = Field(default=1.0, ge=0.05, le=60)
    """Pause between two polls of job progress; least pause between two `item.failed` of a job."""

    database_wait_s: float = Field(default=120, gt=0, le=3600)
    """How long Postgres may be unavailable before the role ends."""

    stop_grace_s: float = Field(default=5, ge=0, le=600)
    """How long a stop waits for running attempts; another process repeats unfinished ones."""

    metrics_port: int | None = Field(default=None, ge=1, le=65535)
    """Port of the Prometheus endpoint; None disables it."""

    metrics_host: str = "127.0.0.1"
    """Address that the metrics port listens on."""

    @field_validator("secret_key")
    @classmethod
    def _is_keys(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            decoded_keys(value)
        return value

    @field_validator("denied_networks")
    @classmethod
    def _is_networks(cls, value: str) -> str:
        for part in filter(None, value.split(",")):
            ipaddress.ip_network(part.strip())
        return value

    def keys(self) -> tuple[bytes, ...]:
        """Return the keys of `secret_key`, the encrypting one first; empty without any."""
        return decoded_keys(self.secret_key) if self.secret_key else ()
