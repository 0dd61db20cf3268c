"""Where KEDA and HorizontalPodAutoscalers read the numbers of replicas."""

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from core.settings import Settings


class KedaSettings(Settings):
    """The servers of the actuator `keda`. They open only if the policy file has its table."""

    env_prefix: ClassVar[str] = "MILLRACE_KEDA_"

    host: str = "127.0.0.1"
    grpc_port: Annotated[int, Field(ge=0, le=65_535)] = 9095
    http_port: Annotated[int, Field(ge=0, le=65_535)] = 9096
    token_file: Path | None = None
