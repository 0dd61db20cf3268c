"""Settings of the limits of request bodies, read by each role that receives bodies."""

from typing import ClassVar, Final

from pydantic import Field

from core.settings import Settings


class BodyLimits(Settings):
    """Limits of one request body that an operator may change."""

    env_prefix: ClassVar[str] = "MILLRACE_BODY_"

    messages_max: int = Field(default=2_048, ge=64)
    """Messages of a chat. Default 2,048."""

    inputs_max: int = Field(default=2_048, ge=64)
    """Inputs of an embedding or a classification; texts, queries or documents to score or rank.
    Default 2,048."""

    tools_max: int = Field(default=256, ge=64)
    """Tools of a chat. Default 256."""

    values_max: int = Field(default=400_000, ge=64)
    """Values in the JSON of a body, the tokens of a prompt included. Default 400,000."""


DEFAULT_BODY_LIMITS: Final = BodyLimits()
