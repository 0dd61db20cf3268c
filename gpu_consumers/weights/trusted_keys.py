"""Reads the public keys whose signatures let a model load: the root of trust is at the replica."""

import re
from pathlib import Path
from typing import Final

from core.errors import SettingsError
from registry.signing.keys import InvalidKeyError, PublicKey

_BYTES_MAX: Final = 1024 * 1024
_PEM: Final = re.compile(rb"-----BEGIN [^-]+-----.+?-----END [^-]+-----", re.DOTALL)


def read_trusted_keys(path: Path) -> dict[str, PublicKey]:
    """Return the keys of a file with one or more PEM public keys, by their id.

    Raises SettingsError for a file that cannot be read, has no key, or a key that is none.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_BYTES_MAX + 1)
    except OSError as failure:
        raise SettingsError(f"trusted_keys: the file cannot be read: {failure.strerror}.") from None
    if len(data) > _BYTES_MAX:
        raise SettingsError(f"trusted_keys: the file has more than {_BYTES_MAX} bytes.")
    blocks = _PEM.findall(data)
    if not blocks:
        raise SettingsError("trusted_keys: the file has no PEM public key.")
    keys = {}
    for number, block in enumerate(blocks, 1):
        try:
            key = PublicKey.from_pem(block + b"\n")
        except InvalidKeyError:
            text = f"trusted_keys: key {number} is no public key on the curve P-256."
            raise SettingsError(text) from None
        keys[key.key_id] = key
    return keys
