"""Encrypts secrets in saved answers, so that only the operator key that asked can read them again.

The encryption key is derived from the operator's secret, of which Postgres has only a hash.
"""

import base64
import hmac
from dataclasses import replace
from typing import Final

import msgspec

from jobs.store.idempotency import StoredAnswer
from storage.crypto.body_ciphers import BodyCipher, BodyDirection, CipherContext
from tenancy.key_secrets import NewKey
from tenancy.operator_keys import OperatorPrincipal

_USE: Final = b"millrace saved answers of operators 1"


def encrypt_secret(operator_secret: str, owner: OperatorPrincipal, key: NewKey) -> str:
    """Return the secret of a new key, encrypted for the operator key `owner`."""
    encrypted = _cipher(operator_secret).encrypt(key.secret.encode(), _context(owner))
    return base64.b64encode(encrypted).decode()


def with_plain_secret(
    operator_secret: str, owner: OperatorPrincipal, answer: StoredAnswer
) -> StoredAnswer:
    """Return an answer whose field `secret` is decrypted; replays have the same bytes."""
    shown = msgspec.json.decode(answer.body)
    encrypted = base64.b64decode(shown["secret"])
    secret = _cipher(operator_secret).decrypt(encrypted, _context(owner)).decode()
    return replace(answer, body=msgspec.json.encode({**shown, "secret": secret}))


def _cipher(operator_secret: str) -> BodyCipher:
    return BodyCipher(hmac.digest(operator_secret.encode(), _USE, "sha256"))


def _context(owner: OperatorPrincipal) -> CipherContext:
    return CipherContext(owner.key_id, BodyDirection.OUT, 0)
