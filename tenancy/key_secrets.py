"""The text of keys: a prefix, 256 random bits and a checksum, so that a typo costs no query."""

import hashlib
import re
import secrets
import zlib
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from core.ids import new_uuid

RANDOM_BYTES: Final = 32

_HINT_CHARS: Final = 4
_RANDOM: Final = r"[A-Za-z0-9_-]{43}"
_CHECKSUM: Final = r"[0-9a-f]{8}"


@dataclass(frozen=True, slots=True)
class NewKey:
    """A new key with its secret, which its owner sees once."""

    key_id: UUID
    hint: str
    secret: str = field(repr=False)


def new_key(prefix: str) -> NewKey:
    """Return a key with a random id and a random secret that begins with `prefix`."""
    secret = key_secret(prefix, secrets.token_bytes(RANDOM_BYTES))
    return NewKey(new_uuid(), secret[-_HINT_CHARS:], secret)


def key_secret(prefix: str, random_bytes: bytes) -> str:
    """Return the secret of a key whose random part is `random_bytes`."""
    body = prefix + urlsafe_b64encode(random_bytes).decode().rstrip("=")
    return body + _checksum(body)


def has_key_format(prefix: str, secret: str) -> bool:
    """Whether `secret` has the format and the checksum of a key with this prefix."""
    parts = re.fullmatch(f"({re.escape(prefix)}{_RANDOM})({_CHECKSUM})", secret)
    return parts is not None and _checksum(parts[1]) == parts[2]


def secret_hash(secret: str) -> bytes:
    """Return the stored hash. 256 random bits cannot be guessed, so they need no slow hash."""
    return hashlib.sha256(secret.encode()).digest()


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"
