"""Signing secrets at rest: encrypted under a key that the database never sees.

A secret is as long as one HMAC-SHA256, so HMAC of a fresh nonce is its one-time pad; a second HMAC
over everything proves that neither bytes nor owner were changed (encrypt, then authenticate).
"""

import hmac
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

from core.errors import MillraceError

SECRET_BYTES: Final = 32
_FORMAT: Final = b"\x01"
_NONCE_BYTES: Final = 16
_PROOF_BYTES: Final = 32
_SEALED_BYTES: Final = len(_FORMAT) + _NONCE_BYTES + SECRET_BYTES + _PROOF_BYTES


class SecretUnreadableError(MillraceError):
    """A signing secret cannot be decrypted: it was sealed under another key."""

    code = "webhook_secret_unreadable"


class SecretCipher:
    """Encrypts secrets with the first of its keys and decrypts with any."""

    def __init__(self, keys: Sequence[bytes], random_bytes: Callable[[int], bytes]) -> None:
        """`random_bytes` must be fit for secrets."""
        assert keys
        self._keys = [(_derived(key, b"encrypt"), _derived(key, b"prove")) for key in keys]
        self._random_bytes = random_bytes

    def new_secret(self) -> bytes:
        """Return a fresh secret."""
        return self._random_bytes(SECRET_BYTES)

    def encrypt(self, secret: bytes, owner: UUID) -> bytes:
        """Return `secret` encrypted; only `owner`'s row can use it."""
        assert len(secret) == SECRET_BYTES
        encrypting, proving = self._keys[0]
        nonce = self._random_bytes(_NONCE_BYTES)
        hidden = _xor(secret, _mac(encrypting, nonce))
        shown = _FORMAT + nonce + hidden
        return shown + _mac(proving, shown + owner.bytes)

    def decrypt(self, sealed: bytes, owner: UUID) -> bytes:
        """Return the secret. Raises SecretUnreadableError."""
        if len(sealed) == _SEALED_BYTES and sealed[:1] == _FORMAT:
            shown, proof = sealed[:-_PROOF_BYTES], sealed[-_PROOF_BYTES:]
            for encrypting, proving in self._keys:
                if hmac.compare_digest(_mac(proving, shown + owner.bytes), proof):
                    nonce = shown[1 : 1 + _NONCE_BYTES]
                    return _xor(shown[1 + _NONCE_BYTES :], _mac(encrypting, nonce))
        raise SecretUnreadableError


def _derived(key: bytes, use: bytes) -> bytes:
    return _mac(key, b"millrace webhooks " + use)


def _mac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
