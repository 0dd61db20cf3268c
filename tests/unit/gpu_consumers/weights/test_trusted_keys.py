"""Goal: the trusted keys are those of the file, and a file with anything else is refused."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from core.errors import SettingsError
from gpu_consumers.weights.trusted_keys import read_trusted_keys
from registry.signing.keys import SigningKey

KEYS = [SigningKey.generate() for _ in range(3)]


def test_each_key_of_the_file_is_trusted(tmp_path: Path) -> None:
    path = tmp_path / "keys.pem"
    path.write_bytes(b"# of the release team\n" + b"\n".join(key.public.pem for key in KEYS))
    trusted = read_trusted_keys(path)
    assert {key_id: key.pem for key_id, key in trusted.items()} == {
        key.public.key_id: key.public.pem for key in KEYS
    }


def test_line_ends_of_windows_change_no_key_id(tmp_path: Path) -> None:
    path = tmp_path / "keys.pem"
    path.write_bytes(KEYS[0].public.pem.replace(b"\n", b"\r\n"))
    assert list(read_trusted_keys(path)) == [KEYS[0].public.key_id]


OTHER_CURVE = (
    ec.generate_private_key(ec.SECP384R1())
    .public_key()
    .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        (b"", "no PEM public key"),
        (b"key", "no PEM public key"),
        (KEYS[0].pem(), "key 1 is no public key"),
        (KEYS[0].public.pem + OTHER_CURVE, "key 2 is no public key on the curve P-256"),
        (bytes(1024 * 1024 + 1), "more than 1048576 bytes"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "keys.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=message) as refusal:
        read_trusted_keys(path)
    assert "PRIVATE" not in str(refusal.value)
