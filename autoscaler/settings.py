"""Settings of the autoscaler."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from core.settings import Settings


class AutoscalerSettings(Settings):
    """The scaling policies, the actuator and the metrics of the role."""

    env_prefix: ClassVar[str] = "MILLRACE_AUTOSCALER_"

    policy_file: Path
    """The TOML file with the scaling policies; a change is read within a second."""

    actuator: str = Field(default="embedded", pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")
    """The name of the actuator of pools whose policy names none."""

    socket: Path | None = None
    """Socket of the supervisor of `millrace up`, for the actuator `embedded`; set by it."""

    interval_s: float = Field(default=1.0, ge=0.05, le=10)
    """Time between two decisions about a pool."""

    kafka_wait_s: float = Field(default=60.0, gt=0, le=3600)
    """How long Kafka may be unavailable before the role ends."""

    metrics_port: int | None = Field(default=None, ge=1, le=65535)
    """Port of the Prometheus endpoint; None disables it."""

    metrics_host: str = "127.0.0.1"
    """Address that the metrics port listens on."""
