"""Encrypts bodies under a data key, so that deleting the key destroys every copy of them.

AES-256-GCM: a format byte, a nonce, the ciphertext and its tag. A body's context is authenticated
as associated data, so that one body cannot replace another. The probability of equal nonces is
below 2⁻³² while a key encrypts fewer than 2³² bodies (NIST SP 800-38D, 8.3).
"""

import os
from enum import Enum
from typing import Final, NamedTuple
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from core.errors import Disposition, MillraceError

KEY_BYTES: Final = 32
ANSWER_END_INDEX: Final = 2**31 - 1
"""Index of the end of a call's answer; the answer's pieces count from 0."""

_FORMAT: Final = b"\x01"  # no JSON text starts with it
_NONCE_BYTES: Final = 12
_HEADER_BYTES: Final = len(_FORMAT) + _NONCE_BYTES


class BodyUnreadableError(MillraceError):
    """The body cannot be decrypted: another key or context encrypted it, or it is plain text."""

    code = "body_unreadable"
    disposition = Disposition.REJECT


class BodyDirection(Enum):
    """Whether a body is input or output."""

    IN = b"i"
    OUT = b"o"


class CipherContext(NamedTuple):
    """The associated data of a body: where it belongs."""

    job_id: UUID
    direction: BodyDirection
    item_index: int  # for a call's answer: the number of the piece


class BodyCipher:
    """Encrypts and decrypts bodies under one key; safe for threads."""

    def __init__(self, secret: bytes) -> None:
        assert len(secret) == KEY_BYTES
        self._cipher = AESGCM(secret)

    def encrypt(self, body: bytes, context: CipherContext) -> bytes:
        """Return the body encrypted for its context."""
        nonce = os.urandom(_NONCE_BYTES)
        return _FORMAT + nonce + self._cipher.encrypt(nonce, body, _associated_data(context))

    def decrypt(self, encrypted: bytes, context: CipherContext) -> bytes:
        """Return the body that was encrypted for this context. Raises BodyUnreadableError."""
        if encrypted[:1] != _FORMAT:
            raise BodyUnreadableError(job=context.job_id, index=context.item_index)
        nonce, rest = encrypted[1:_HEADER_BYTES], encrypted[_HEADER_BYTES:]
        try:
            return self._cipher.decrypt(nonce, rest, _associated_data(context))
        except (InvalidTag, ValueError):  # ValueError: too short to hold a nonce
            raise BodyUnreadableError(job=context.job_id, index=context.item_index) from None


def _associated_data(context: CipherContext) -> bytes:
    return b"%b%b%d" % (context.job_id.bytes, context.direction.value, context.item_index)
