"""Signing secrets of webhooks and their encryption at rest.

The key that encrypts them is not in the database. `core.webhook_signatures` signs with them. A
secret is as long as one HMAC-SHA256, so the HMAC of a random nonce serves as its one-time pad. A
second HMAC over ciphertext and owner authenticates them (encrypt-then-MAC).
"""

import hmac
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

from core.errors import MillraceError
from core.webhook_signatures import PREFIX, secret_text

_HINT_CHARS: Final = 4
SECRET_BYTES: Final = 32
_FORMAT: Final = b"\x01"
_NONCE_BYTES: Final = 16
_MAC_BYTES: Final = 32
_ENCRYPTED_BYTES: Final = len(_FORMAT) + _NONCE_BYTES + SECRET_BYTES + _MAC_BYTES


def secret_hint(secret: bytes) -> str:
    """Return the last characters of a secret, which identify it without revealing it."""
    return f"{PREFIX}…{secret_text(secret).rstrip('=')[-_HINT_CHARS:]}"


class SecretUnreadableError(MillraceError):
    """A signing secret cannot be decrypted: it was encrypted under another key."""

    code = "webhook_secret_unreadable"


class SecretCipher:
    """Encrypts secrets with the first of its keys and decrypts with any."""

    def __init__(self, keys: Sequence[bytes], random_bytes: Callable[[int], bytes]) -> None:
        """`random_bytes` must be cryptographically secure."""
        assert keys
        self._keys = [(_derived(key, b"encrypt"), _derived(key, b"prove")) for key in keys]
        self._random_bytes = random_bytes

    def new_secret(self) -> bytes:
        """Return a random secret."""
        return self._random_bytes(SECRET_BYTES)

    def encrypt(self, secret: bytes, owner: UUID) -> bytes:
        """Return `secret` encrypted and bound to the row of `owner`."""
        assert len(secret) == SECRET_BYTES
        encryption_key, mac_key = self._keys[0]
        nonce = self._random_bytes(_NONCE_BYTES)
        ciphertext = _xor(secret, _mac(encryption_key, nonce))
        authenticated = _FORMAT + nonce + ciphertext
        return authenticated + _mac(mac_key, authenticated + owner.bytes)

    def decrypt(self, encrypted: bytes, owner: UUID) -> bytes:
        """Return the secret. Raises SecretUnreadableError."""
        if len(encrypted) == _ENCRYPTED_BYTES and encrypted[:1] == _FORMAT:
            authenticated, mac = encrypted[:-_MAC_BYTES], encrypted[-_MAC_BYTES:]
            for encryption_key, mac_key in self._keys:
                if hmac.compare_digest(_mac(mac_key, authenticated + owner.bytes), mac):
                    nonce = authenticated[1 : 1 + _NONCE_BYTES]
                    return _xor(authenticated[1 + _NONCE_BYTES :], _mac(encryption_key, nonce))
        raise SecretUnreadableError


def _derived(key: bytes, use: bytes) -> bytes:
    return _mac(key, b"millrace webhooks " + use)


def _mac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
