"""Settings of the sources of models, for the commands that publish them."""

from typing import ClassVar

from pydantic import Field

from core.settings import Settings


class SourceSettings(Settings):
    """Limits of downloads."""

    env_prefix: ClassVar[str] = "MILLRACE_SOURCES_"

    bytes_per_s_min: int = Field(default=16 * 1024, ge=0)
    """Lowest rate of one file over a minute; four files are read at once. 0: no limit."""
