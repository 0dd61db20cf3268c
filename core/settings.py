"""The settings base: read once from the environment, checked whole, frozen."""

from collections.abc import Iterable, Mapping
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from core.errors import SettingsError


class Settings(BaseModel):
    """Base of every settings class; it lives beside the client or role that it configures.

    A misspelt or bad variable stops the process at start, all mistakes in one message.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    env_prefix: ClassVar[str]

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Self:
        """Build from the variables named `<env_prefix><FIELD>`. Raises SettingsError."""
        prefix = cls.env_prefix
        ours = {n.removeprefix(prefix).lower(): v for n, v in env.items() if n.startswith(prefix)}
        try:
            return cls.model_validate(ours)
        except ValidationError as error:
            raise SettingsError("; ".join(_mistakes(prefix, error))) from None


def _mistakes(prefix: str, error: ValidationError) -> Iterable[str]:
    """One sentence a mistake, naming the variable and never its value: it may be a secret."""
    for mistake in error.errors(include_input=False, include_url=False):
        name = prefix + "_".join(str(part) for part in mistake["loc"]).upper()
        yield f"{name}: {mistake['msg']}"
