"""Settings of the database."""

from typing import ClassVar

from pydantic import Field, SecretStr, field_validator
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from core.settings import Settings

_DRIVERS = frozenset({"postgresql", "postgres", "postgresql+psycopg"})


class DatabaseSettings(Settings):
    """Connections of one process to Postgres, and their timeouts."""

    env_prefix: ClassVar[str] = "MILLRACE_DATABASE_"

    url: SecretStr
    """`postgresql://user:password@host/name`; a socket folder is given as `?host=/folder`. Write an
    @ in the password as %40."""

    pool_size: int = Field(default=10, ge=1, le=200)
    """Most connections of one process. The sum over all processes must be < `max_connections`.

    In an API process one tenant can use half of them, all tenants together three quarters."""

    pool_wait_s: float = Field(default=10.0, gt=0, le=600)
    """Longest wait for a free connection of the pool; a longer one is an error."""

    connect_timeout_s: int = Field(default=5, ge=2, le=60)
    """Longest wait for a new connection, per address. libpq takes whole seconds, at least 2."""

    statement_timeout_s: float = Field(default=30.0, gt=0, le=3600)
    """Longest statement; Postgres cancels longer ones and the transaction fails."""

    lock_timeout_s: float = Field(default=10.0, gt=0, le=3600)
    """Longest wait for a row or table lock."""

    idle_transaction_timeout_s: float = Field(default=120.0, gt=0, le=3600)
    """Longest idle time in a transaction, so that a stuck process cannot keep its locks."""

    @field_validator("url")
    @classmethod
    def _is_a_postgres_url(cls, url: SecretStr) -> SecretStr:
        text = url.get_secret_value()
        try:
            parsed = make_url(text)
        except (ArgumentError, ValueError):
            # Without its cause: SQLAlchemy quotes the text, password included.
            raise ValueError("not a URL like postgresql://user@host/name") from None
        option = text.partition("?")[2].partition("=")[0]
        if any("@" in part for part in (parsed.host or "", parsed.database or "", option)):
            # Most likely part of a password, which messages would show as a host.
            raise ValueError("write an @ in the password as %40")
        if parsed.drivername not in _DRIVERS:
            raise ValueError("the scheme must be postgresql")
        return url

    def sqlalchemy_url(self) -> URL:
        """Return the URL with psycopg 3 as its driver; printing it hides the password."""
        return make_url(self.url.get_secret_value()).set(drivername="postgresql+psycopg")
