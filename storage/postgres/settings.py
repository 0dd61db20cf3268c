"""Settings of the database; the clients beside them take these alone."""

from typing import ClassVar

from pydantic import Field, SecretStr, field_validator
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from core.settings import Settings

_DRIVERS = frozenset({"postgresql", "postgres", "postgresql+psycopg"})


class DatabaseSettings(Settings):
    """How one process reaches Postgres and how long it waits there."""

    env_prefix: ClassVar[str] = "MILLRACE_DATABASE_"

    url: SecretStr
    """`postgresql://user:password@host/name`; a socket folder goes into `?host=/folder`. An @ in
    the password is written %40."""

    pool_size: int = Field(default=8, ge=1, le=200)
    """Connections of one process at most. Sum over the processes < `max_connections`.

    Of an api's one tenant takes half, and all tenants together three quarters."""

    pool_wait_s: float = Field(default=10.0, gt=0, le=600)
    """Wait for a free connection of the pool; a longer wait is a bottleneck worth an error."""

    connect_timeout_s: int = Field(default=5, ge=2, le=60)
    """Wait for a new connection, per address. libpq takes whole seconds and no less than 2."""

    statement_timeout_s: float = Field(default=30.0, gt=0, le=3600)
    """Longest statement; Postgres cuts it and the transaction fails."""

    lock_timeout_s: float = Field(default=10.0, gt=0, le=3600)
    """Longest wait for one row or table lock."""

    idle_transaction_timeout_s: float = Field(default=120.0, gt=0, le=3600)
    """Longest pause inside a transaction, so that a stuck process cannot hold its locks."""

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
            # Part of a password, most likely, which would be told as that of a host.
            raise ValueError("an @ in the password is written %40")
        if parsed.drivername not in _DRIVERS:
            raise ValueError("the scheme must be postgresql")
        return url

    def sqlalchemy_url(self) -> URL:
        """Return the URL with psycopg 3 as its driver; printing it hides the password."""
        return make_url(self.url.get_secret_value()).set(drivername="postgresql+psycopg")
