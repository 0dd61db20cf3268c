"""Signatures of webhooks by the Standard Webhooks scheme, version 1: HMAC-SHA256. Pure.

The signed content is id, time and body, joined by dots.
"""

import base64
import binascii
import hmac
from collections.abc import Sequence
from typing import Final

PREFIX: Final = "whsec_"
SECRET_BYTES_MIN: Final = 24
SECRET_BYTES_MAX: Final = 64
"""The least and most bytes of a secret in the scheme."""


def secret_text(secret: bytes) -> str:
    """Return a secret in the form that is shown to its owner once."""
    return PREFIX + base64.b64encode(secret).decode()


def secret_of_text(text: str) -> bytes:
    """Return the secret in a text as `secret_text` makes it. Raises ValueError without the text."""
    try:
        secret = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if not text.startswith(PREFIX) or not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise ValueError("a secret is whsec_ and base64 of 24 to 64 bytes")
    return secret


def signed_headers(
    secrets: Sequence[bytes], message_id: str, at_s: int, body: bytes
) -> dict[str, str]:
    """Return the three signature headers, with one signature for each of `secrets`.

    `at_s`, the time of this attempt, is signed: receivers reject old timestamps.
    """
    content = f"{message_id}.{at_s}.".encode() + body
    signatures = (base64.b64encode(hmac.digest(s, content, "sha256")).decode() for s in secrets)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(at_s),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
