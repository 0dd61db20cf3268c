"""Keys whose signatures of models are accepted: add, list and revoke them."""

from typing import Any, Final

import sqlalchemy as sa

from registry.errors import InvalidModelError, ModelKeyNotFoundError, ModelKeyRevokedError
from registry.signing.keys import PublicKey
from registry.signing.model_signature import InvalidSignatureError
from registry.store.acts import lock_registry
from registry.store.state_publishing import publish_key
from registry.tables import model_keys

KEYS_MAX: Final = 1000
KEY_NAME_CHARS_MAX: Final = 256
PEM_BYTES_MAX: Final = 4096


def trust_key(connection: sa.Connection, pem: bytes, name: str) -> sa.Row[Any]:
    """Accept signatures by a public key from now on; return its row.

    This lets versions be registered. What a replica loads is decided by the keys that the replica
    has itself. Raises InvalidKeyError, InvalidModelError, ModelKeyRevokedError.
    """
    key = PublicKey.from_pem(pem[:PEM_BYTES_MAX])
    if not (name.isprintable() and name.strip() and len(name) <= KEY_NAME_CHARS_MAX):
        text = f"The name of a key has 1 to {KEY_NAME_CHARS_MAX} printable characters."
        raise InvalidModelError(text)
    lock_registry(connection)
    found = _find(connection, key.key_id)
    if found is None:
        count = connection.scalar(sa.select(sa.func.count()).select_from(model_keys)) or 0
        if count >= KEYS_MAX:
            raise InvalidModelError(f"There are {KEYS_MAX} keys: no more can be added.")
        connection.execute(
            model_keys.insert().values(key_id=key.key_id, pem=key.pem.decode(), name=name)
        )
    elif found.revoked_at is not None:
        raise ModelKeyRevokedError(key_id=key.key_id)
    publish_key(connection, key.key_id, is_revoked=False)
    return find_key(connection, key.key_id)


def revoke_key(connection: sa.Connection, key_id: str) -> sa.Row[Any]:
    """Let no signature by a key count any more, for good; return its row.

    Its versions stay registered. Replicas do not load them again unless another key has signed
    them, too. Revoking a revoked key changes nothing. Raises ModelKeyNotFoundError.
    """
    lock_registry(connection)
    if find_key(connection, key_id).revoked_at is None:
        connection.execute(
            sa.update(model_keys)
            .where(model_keys.c.key_id == key_id)
            .values(revoked_at=sa.func.clock_timestamp())
        )
    publish_key(connection, key_id, is_revoked=True)
    return find_key(connection, key_id)


def list_keys(connection: sa.Connection) -> list[sa.Row[Any]]:
    """Return all keys, revoked ones too, the oldest first."""
    query = sa.select(model_keys).order_by(model_keys.c.added_at, model_keys.c.key_id)
    return list(connection.execute(query))


def find_key(connection: sa.Connection, key_id: str) -> sa.Row[Any]:
    """Return the row of a key. Raises ModelKeyNotFoundError."""
    found = _find(connection, key_id)
    if found is None:
        raise ModelKeyNotFoundError(key_id=key_id)
    return found


def is_known_key(connection: sa.Connection, key_id: str) -> bool:
    """Whether a key was added before, whether or not it is revoked."""
    return _find(connection, key_id) is not None


def trusted_key(connection: sa.Connection, key_id: str) -> PublicKey:
    """Return a key that is not revoked. Raises InvalidSignatureError."""
    found = _find(connection, key_id)
    if found is None:
        raise InvalidSignatureError("The key of the signature is not among the model keys.")
    if found.revoked_at is not None:
        raise InvalidSignatureError("The key of the signature is revoked.")
    return PublicKey.from_pem(found.pem.encode())


def _find(connection: sa.Connection, key_id: str) -> sa.Row[Any] | None:
    if not key_id.isalnum() or not key_id.isascii():
        return None
    return connection.execute(sa.select(model_keys).where(model_keys.c.key_id == key_id)).first()
