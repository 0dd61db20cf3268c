"""Answers that contain a signing secret, saved for replays with the secret encrypted."""

import base64
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

import msgspec

from api.http.responses import ApiError
from jobs.store.idempotency import StoredAnswer
from results.webhooks.delivery.signatures import secret_text
from results.webhooks.endpoints.secret_encryption import SecretCipher, SecretUnreadableError


def encrypted_answer(
    shown: Mapping[str, object], secret: bytes, sealer: SecretCipher, tenant_id: UUID
) -> StoredAnswer:
    """Return `shown` with its secret encrypted: no stored data may contain one in plain text."""
    encrypted = base64.b64encode(sealer.encrypt(secret, tenant_id)).decode()
    return StoredAnswer(200, msgspec.json.encode({**shown, "signing_secret": encrypted}))


def decrypted_answer(answer: StoredAnswer, sealer: SecretCipher, tenant_id: UUID) -> StoredAnswer:
    """Return the answer with the secret in plain text. Every replay has the same bytes.

    Raises ApiError (410) when the encryption key is gone.
    """
    shown = msgspec.json.decode(answer.body)
    try:
        secret = sealer.decrypt(base64.b64decode(shown["signing_secret"]), tenant_id)
    except SecretUnreadableError:
        raise ApiError(410, "The stored answer is deleted.", code="answer_gone") from None
    body = msgspec.json.encode({**shown, "signing_secret": secret_text(secret)})
    return replace(answer, body=body)
