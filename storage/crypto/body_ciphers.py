"""Bodies encrypted under a data key, so that destroying the key destroys them wherever they lie.

AES-256-GCM: a format byte, a nonce, then what was encrypted and its proof. Where a body belongs is
proved too, so that nobody can put it in the place of another. Two nonces of one key are equal with
a probability below 2⁻³² as long as it encrypts fewer than 2³² bodies (NIST SP 800-38D, 8.3).
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
"""In place of an item's index: the end of a call's answer; its pieces count from 0."""

_FORMAT: Final = b"\x01"  # begins no JSON text
_NONCE_BYTES: Final = 12
_HEAD_BYTES: Final = len(_FORMAT) + _NONCE_BYTES


class BodyUnreadableError(MillraceError):
    """A body cannot be decrypted: it is of another key or place, or not encrypted at all."""

    code = "body_unreadable"
    disposition = Disposition.REJECT


class BodyDirection(Enum):
    """Which way a body goes."""

    IN = b"i"
    OUT = b"o"


class CipherContext(NamedTuple):
    """Where a body belongs."""

    job_id: UUID
    direction: BodyDirection
    item_index: int  # of a call's answer: the number of the piece


class BodyCipher:
    """Encrypts and decrypts under one key; safe for threads."""

    def __init__(self, secret: bytes) -> None:
        """`secret` has KEY_BYTES."""
        assert len(secret) == KEY_BYTES
        self._cipher = AESGCM(secret)

    def encrypt(self, body: bytes, place: CipherContext) -> bytes:
        """Return a body encrypted for its place."""
        nonce = os.urandom(_NONCE_BYTES)
        return _FORMAT + nonce + self._cipher.encrypt(nonce, body, _proved(place))

    def decrypt(self, encrypted: bytes, place: CipherContext) -> bytes:
        """Return what was encrypted for this place. Raises BodyUnreadableError."""
        if encrypted[:1] != _FORMAT:
            raise BodyUnreadableError(job=place.job_id, index=place.item_index)
        nonce, rest = encrypted[1:_HEAD_BYTES], encrypted[_HEAD_BYTES:]
        try:
            return self._cipher.decrypt(nonce, rest, _proved(place))
        except (InvalidTag, ValueError):  # ValueError: too short to hold a nonce
            raise BodyUnreadableError(job=place.job_id, index=place.item_index) from None


def _proved(place: CipherContext) -> bytes:
    return b"%b%b%d" % (place.job_id.bytes, place.direction.value, place.item_index)
