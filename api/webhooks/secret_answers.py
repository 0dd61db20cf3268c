"""Answers that show a signing secret, as they are kept for repeats: the secret stays encrypted."""

import base64
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

import msgspec

from api.http.responses import ApiError
from jobs.store.idempotency import Answer
from results.webhooks.delivery.signatures import secret_text
from results.webhooks.endpoints.secret_encryption import Sealer, SecretUnreadableError


def encrypted_answer(
    shown: Mapping[str, object], secret: bytes, sealer: Sealer, tenant_id: UUID
) -> Answer:
    """Return `shown` with its secret encrypted: nothing at rest may show one."""
    sealed = base64.b64encode(sealer.seal(secret, tenant_id)).decode()
    return Answer(200, msgspec.json.encode({**shown, "signing_secret": sealed}))


def decrypted_answer(answer: Answer, sealer: Sealer, tenant_id: UUID) -> Answer:
    """Return the answer as its client sees it; bytes are equal as often as it is given.

    Raises ApiError (410) when the key that it was encrypted under is gone.
    """
    shown = msgspec.json.decode(answer.body)
    try:
        secret = sealer.open(base64.b64decode(shown["signing_secret"]), tenant_id)
    except SecretUnreadableError:
        raise ApiError(410, "The answer is gone.", code="answer_gone") from None
    body = msgspec.json.encode({**shown, "signing_secret": secret_text(secret)})
    return replace(answer, body=body)
