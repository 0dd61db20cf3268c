"""Goal: secrets at rest are bound to their owner's row and key, and appear nowhere."""

import base64
import os
from uuid import uuid4

import pytest
from pydantic import SecretStr, ValidationError

from core.webhook_signatures import secret_text
from results.webhooks.endpoints.signing_secrets import (
    SecretCipher,
    SecretUnreadableError,
    secret_hint,
)
from results.webhooks.settings import WebhookSettings

OLD, NEW = b"o" * 32, b"n" * 32
OWNER = uuid4()


def test_encrypted_secret_decrypts() -> None:
    sealer = SecretCipher([OLD], os.urandom)
    secret = sealer.new_secret()
    sealed = sealer.encrypt(secret, OWNER)

    assert sealer.decrypt(sealed, OWNER) == secret
    assert secret not in sealed
    assert sealer.encrypt(secret, OWNER) != sealed


def test_other_owner_key_or_changed_byte_does_not_decrypt() -> None:
    sealer = SecretCipher([OLD], os.urandom)
    sealed = sealer.encrypt(sealer.new_secret(), OWNER)

    for reader, owner in ((sealer, uuid4()), (SecretCipher([NEW], os.urandom), OWNER)):
        with pytest.raises(SecretUnreadableError):
            reader.decrypt(sealed, owner)
    flipped = [sealed[:n] + bytes([sealed[n] ^ 1]) + sealed[n + 1 :] for n in range(len(sealed))]
    for changed in (*flipped, sealed[:-1], b""):
        with pytest.raises(SecretUnreadableError):
            sealer.decrypt(changed, OWNER)


def test_first_key_encrypts_and_all_keys_decrypt() -> None:
    secret = os.urandom(32)
    before = SecretCipher([OLD], os.urandom).encrypt(secret, OWNER)
    sealer = SecretCipher([NEW, OLD], os.urandom)

    assert sealer.decrypt(before, OWNER) == secret
    assert SecretCipher([NEW], os.urandom).decrypt(sealer.encrypt(secret, OWNER), OWNER) == secret


def test_keys_come_from_settings() -> None:
    text = ",".join(base64.b64encode(key).decode() for key in (NEW, OLD))

    assert WebhookSettings(secret_key=SecretStr(text)).keys() == (NEW, OLD)
    assert WebhookSettings().keys() == ()


@pytest.mark.parametrize("text", ["", "short", "c2hvcnQ=", "!" * 44])
def test_a_bad_key_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(ValidationError) as refused:
        WebhookSettings(secret_key=SecretStr(text))
    assert not text or f"'{text}'" not in str(refused.value)


def test_hint_reveals_only_the_last_characters() -> None:
    secret = os.urandom(32)
    hint = secret_hint(secret)

    assert hint.startswith("whsec_…")
    assert len(hint) == len("whsec_…") + 4
    assert secret_text(secret).rstrip("=").endswith(hint[-4:])
