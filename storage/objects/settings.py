"""Settings of the object store, apart from the database's: replicas have no database."""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, SecretStr, model_validator

from core.settings import Settings

MIB = 1024 * 1024


class ObjectStoreSettings(Settings):
    """The object store of input files, output files and large payloads."""

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
    """The bucket of kind `s3` and the connection to its server."""

    env_prefix: ClassVar[str] = "MILLRACE_S3_"

    bucket: str = Field(min_length=3, max_length=63)
    """An existing bucket for this installation alone: its unfinished uploads are swept. Its
    life-cycle rules must not delete objects of unfinished jobs."""

    endpoint_url: str | None = Field(default=None, pattern=r"^https?://[^/]")
    """A server other than Amazon's. The bucket is then part of the path, not of the host name."""

    region: str = Field(default="us-east-1", min_length=1)
    """The region of request signatures."""

    access_key: SecretStr | None = None
    """Without the two keys, boto3 searches its own chain (role, profile, environment)."""

    secret_key: SecretStr | None = None
    """See `access_key`."""

    part_bytes: int = Field(default=8 * MIB, ge=5 * MIB, le=512 * MIB)
    """Memory of one upload, and one part of it; parts double after each 2,000. 480 GiB at 8 MiB.
    For a store that needs parts of one size, set it so that 2,000 parts hold the largest file."""

    connect_timeout_s: float = Field(default=5.0, gt=0, le=60)
    """Timeout of a connection, per try."""

    read_timeout_s: float = Field(default=30.0, gt=0, le=600)
    """Longest pause of the server, per try."""

    tries_max: int = Field(default=4, ge=1, le=10)
    """Tries of one request, with exponential backoff between them."""

    connections_max: int = Field(default=32, ge=1, le=500)
    """Pooled connections of one process; every object being read uses one."""

    @model_validator(mode="after")
    def _both_keys_or_none(self) -> Self:
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("access_key and secret_key go together")
        return self
