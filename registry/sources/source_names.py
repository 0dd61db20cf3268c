"""Parses the name of a model's source: a folder, `s3://BUCKET/PREFIX` or `hf://ORG/NAME@REV`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from registry.sources.errors import ModelSourceError

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_REVISION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")  # a branch, a tag or a commit
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX_CHARS_MAX: Final = 1024  # of a key, by the protocol


@dataclass(frozen=True, slots=True)
class FolderSource:
    """A folder of this machine."""

    folder: Path

    def __str__(self) -> str:
        """Return nothing: a path of one machine says nothing elsewhere."""
        return ""


@dataclass(frozen=True, slots=True)
class S3Source:
    """All objects of a bucket below a prefix."""

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository of the hub. `revision` None is its main branch."""

    repository: str
    revision: str | None = None

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf://{self.repository}{revision}"

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, whose files never change."""
        return self.revision is not None and _COMMIT.fullmatch(self.revision) is not None


Source: TypeAlias = FolderSource | S3Source | HubSource


def is_hub_id(text: str) -> bool:
    """Whether a text may name a repository of the hub."""
    return _HUB_ID.fullmatch(text) is not None


def parse_source(text: str) -> Source:
    """Return the source that a text names. Raises ModelSourceError.

    `ORG/NAME` and `ORG/NAME@REV` are a repository of the hub unless a folder has that path.
    """
    if text.startswith("hf://"):
        return _hub_source(text, text.removeprefix("hf://"))
    if text.startswith("s3://"):
        bucket, _, prefix = text.removeprefix("s3://").partition("/")
        prefix = prefix.strip("/")
        is_valid = prefix.isprintable() and len(prefix) <= _PREFIX_CHARS_MAX
        if not _BUCKET.fullmatch(bucket) or not prefix or not is_valid:
            raise ModelSourceError(f"{text!r} is no source: give s3://BUCKET/PREFIX.")
        return S3Source(bucket, prefix)
    if "://" in text:
        raise ModelSourceError(f"{text!r} is no source: give a folder, s3://… or hf://….")
    folder = Path(text).expanduser().absolute()
    if not folder.is_dir() and _HUB_ID.fullmatch(text.partition("@")[0]):
        return _hub_source(text, text)
    return FolderSource(folder)


def _hub_source(text: str, name: str) -> HubSource:
    repository, at, revision = name.partition("@")
    is_valid = _HUB_ID.fullmatch(repository) and ".." not in name and "--" not in repository
    if not is_valid or (at and not _REVISION.fullmatch(revision)):
        raise ModelSourceError(f"{text!r} is no repository of the hub: give hf://ORG/NAME[@REV].")
    return HubSource(repository, revision or None)
