"""Public ids: a prefix and 128 random bits, stored in Postgres as a `uuid` column."""

import secrets
from uuid import UUID

JOB = "batch"
FILE = "file"
TENANT = "ten"
KEY = "key"
OPERATOR_KEY = "opkey"
REQUEST = "req"
SINGLE = "job"
EVENT = "evt"
QUARANTINE = "quar"

_HEX_DIGITS = 32


def new_uuid() -> UUID:
    """Return a UUID of 128 random bits, without version bits (promise P16 needs all 128)."""
    return UUID(bytes=secrets.token_bytes(16))


def public_id(prefix: str, value: UUID) -> str:
    """Return the id that clients see, e.g. `batch_00112233445566778899aabbccddeeff`."""
    separator = "-" if prefix == FILE else "_"
    return f"{prefix}{separator}{value.hex}"


def parse_public_id(prefix: str, text: str) -> UUID | None:
    """Return the UUID of a public id, or None when `text` is not one with that prefix."""
    head = f"{prefix}-" if prefix == FILE else f"{prefix}_"
    digits = text.removeprefix(head)
    if digits == text or len(digits) != _HEX_DIGITS:
        return None
    if not all(c in "0123456789abcdef" for c in digits):
        return None
    return UUID(hex=digits)
