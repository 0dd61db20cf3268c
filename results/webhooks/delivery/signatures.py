"""Signatures of the Standard Webhooks scheme, version 1: HMAC-SHA256 over id, time and body."""

import base64
import hmac
from collections.abc import Sequence
from typing import Final

PREFIX: Final = "whsec_"
_HINT_CHARS: Final = 4


def secret_text(secret: bytes) -> str:
    """Return a secret in the form that is shown to its owner once."""
    return PREFIX + base64.b64encode(secret).decode()


def secret_hint(secret: bytes) -> str:
    """Return the last characters of a secret, which identify it without revealing it."""
    return f"{PREFIX}…{secret_text(secret).rstrip('=')[-_HINT_CHARS:]}"


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
