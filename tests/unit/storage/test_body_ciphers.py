"""Goal: a body can only be decrypted with its key and context."""

import os
from uuid import UUID

import pytest

from storage.crypto.body_ciphers import (
    KEY_BYTES,
    BodyCipher,
    BodyDirection,
    BodyUnreadableError,
    CipherContext,
)

HERE = CipherContext(UUID(int=1), BodyDirection.IN, 12)
BODY = b'{"prompt":"secret"}'


@pytest.fixture
def cipher() -> BodyCipher:
    return BodyCipher(os.urandom(KEY_BYTES))


@pytest.mark.parametrize("body", [b"", b"x", BODY, BODY * 50_000])
def test_an_encrypted_body_can_be_decrypted(cipher: BodyCipher, body: bytes) -> None:
    encrypted = cipher.encrypt(body, HERE)
    assert b"secret" not in encrypted
    assert cipher.decrypt(encrypted, HERE) == body


def test_equal_bodies_have_different_ciphertexts(cipher: BodyCipher) -> None:
    assert cipher.encrypt(BODY, HERE) != cipher.encrypt(BODY, HERE)


@pytest.mark.parametrize(
    "context",
    [
        HERE._replace(job_id=UUID(int=2)),
        HERE._replace(direction=BodyDirection.OUT),
        HERE._replace(item_index=1),
        HERE._replace(item_index=120),
    ],
)
def test_another_context_is_refused(cipher: BodyCipher, context: CipherContext) -> None:
    with pytest.raises(BodyUnreadableError):
        cipher.decrypt(cipher.encrypt(BODY, HERE), context)


def test_another_key_is_refused(cipher: BodyCipher) -> None:
    with pytest.raises(BodyUnreadableError):
        BodyCipher(os.urandom(KEY_BYTES)).decrypt(cipher.encrypt(BODY, HERE), HERE)


def test_truncated_changed_or_plain_bodies_are_refused(cipher: BodyCipher) -> None:
    encrypted = cipher.encrypt(BODY, HERE)
    flipped = [
        encrypted[:at] + bytes([encrypted[at] ^ 1]) + encrypted[at + 1 :]
        for at in range(len(encrypted))
    ]
    cuts = [encrypted[:length] for length in range(len(encrypted))]
    for broken in [*flipped, *cuts, encrypted + b"x", BODY]:
        with pytest.raises(BodyUnreadableError) as refusal:
            cipher.decrypt(broken, HERE)
        assert "secret" not in f"{refusal.value} {refusal.value.facts}"
