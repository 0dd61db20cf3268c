"""Settings of the database and of the object store; the clients beside them take these alone."""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from core.settings import Settings

MIB = 1024 * 1024

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


class ObjectStoreSettings(Settings):
    """Which object store holds input files, output files and large payloads."""

    env_prefix: ClassVar[str] = "MILLRACE_OBJECTS_"

    kind: Literal["local", "s3"] = "local"
    """`local`: a folder that every role on this host shares; `s3`: see `S3Settings`."""

    root: Path | None = None
    """The folder of kind `local`, absolute: roles may start in different folders."""

    @model_validator(mode="after")
    def _local_has_a_root(self) -> Self:
        if self.kind == "local" and self.root is None:
            raise ValueError("kind local needs root")
        if self.root is not None and not self.root.is_absolute():
            raise ValueError("root must be an absolute path")
        return self


class S3Settings(Settings):
    """The bucket of kind `s3` and how to speak with its server."""

    env_prefix: ClassVar[str] = "MILLRACE_S3_"

    bucket: str = Field(min_length=3, max_length=63)
    """An existing bucket, of this installation alone: unfinished uploads in it are swept. Its
    life-cycle rules must not delete objects of unfinished jobs."""

    endpoint_url: str | None = Field(default=None, pattern=r"^https?://[^/]")
    """A server other than Amazon's; buckets then go into the path, not into the host name."""

    region: str = Field(default="us-east-1", min_length=1)
    """The region that requests are signed for."""

    access_key: SecretStr | None = None
    """Without the two keys, boto3's own chain finds them (role, profile, environment)."""

    secret_key: SecretStr | None = None
    """See `access_key`."""

    part_bytes: int = Field(default=8 * MIB, ge=5 * MIB, le=512 * MIB)
    """Memory of one upload, and one part of it. 10,000 parts at most: 80 GB at 8 MiB."""

    connect_timeout_s: float = Field(default=5.0, gt=0, le=60)
    """Wait for a connection, per try."""

    read_timeout_s: float = Field(default=30.0, gt=0, le=600)
    """Longest silence of the server, per try."""

    tries_max: int = Field(default=4, ge=1, le=10)
    """Tries of one request, with exponential backoff between them."""

    connections_max: int = Field(default=32, ge=1, le=500)
    """Kept connections of one process; every object being read holds one."""

    @model_validator(mode="after")
    def _both_keys_or_none(self) -> Self:
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("access_key and secret_key go together")
        return self
