"""Secret keys in settings: base64, several of them separated by commas."""

import base64
import binascii
from typing import Final

from pydantic import SecretStr

KEY_BYTES: Final = 32


def decoded_keys(value: SecretStr) -> tuple[bytes, ...]:
    """Return the bytes of each key. Raises ValueError that does not quote the text."""
    try:
        keys = tuple(
            base64.b64decode(part.strip(), validate=True)
            for part in value.get_secret_value().split(",")
        )
    except (binascii.Error, ValueError):
        raise ValueError("not base64") from None
    if any(len(key) != KEY_BYTES for key in keys):
        raise ValueError(f"each key must be base64 of {KEY_BYTES} bytes")
    return keys
