"""Goal: a secret is random, detects typos, and is never printed by accident."""

import secrets

from core.ids import new_uuid
from tenancy.api_keys import is_well_formed
from tenancy.key_secrets import NewKey, key_secret


def test_a_secret_has_random_bits_and_a_checksum() -> None:
    secret = key_secret("sk-", secrets.token_bytes(32))

    assert secret.startswith("sk-")
    assert is_well_formed(secret)


def test_a_typo_is_detected() -> None:
    secret = key_secret("sk-", bytes(32))

    for place in range(len(secret)):
        other = "x" if secret[place] != "x" else "y"
        assert not is_well_formed(secret[:place] + other + secret[place + 1 :])
    assert not is_well_formed(secret + "0")
    assert not is_well_formed("")


def test_a_key_does_not_print_its_secret() -> None:
    assert "sk-" not in repr(NewKey(new_uuid(), "abcd", "sk-secret"))
