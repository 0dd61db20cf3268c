"""Goal: only files that a trusted key has signed, all of them and no others, verify."""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from registry.manifests.model_folder import scan_folder
from registry.signing.keys import InvalidKeyError, PublicKey, SigningKey
from registry.signing.model_signature import (
    BUNDLE_BYTES_MAX,
    InvalidSignatureError,
    require_same_files,
    sign_files,
    verify_bundle,
    verify_version,
)

KEY = SigningKey.generate()
OTHER = SigningKey.generate()
TRUSTED = {KEY.public.key_id: KEY.public}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    for path in ("config.json", "model.safetensors", "sub/tokenizer.json"):
        (tmp_path / path).write_text(f"content of {path}")
    return tmp_path


def signed(folder: Path, key: SigningKey = KEY) -> bytes:
    return sign_files(key, "model", scan_folder(folder))


def verify(folder: Path, bundle: bytes) -> None:
    require_same_files(verify_bundle(bundle, TRUSTED), scan_folder(folder))


def test_a_signed_folder_verifies(folder: Path) -> None:
    verify(folder, signed(folder))


def flip(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)


def swap(folder: Path) -> None:
    (folder / "config.json").rename(folder / "x")
    (folder / "model.safetensors").rename(folder / "config.json")
    (folder / "x").rename(folder / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (flip, "differs"),
        (swap, "differs"),
        (lambda folder: (folder / "added.json").write_text(""), "not signed"),
        (lambda folder: (folder / "config.json").unlink(), "missing"),
        (lambda folder: (folder / "config.json").rename(folder / "c.json"), "not signed"),
    ],
    ids=["flipped bit", "swapped files", "added file", "dropped file", "renamed file"],
)
def test_a_changed_folder_does_not_verify(
    folder: Path, change: Callable[[Path], object], message: str
) -> None:
    bundle = signed(folder)
    change(folder)
    with pytest.raises(InvalidSignatureError, match=message):
        verify(folder, bundle)


def test_a_signature_by_another_key_does_not_verify(folder: Path) -> None:
    with pytest.raises(InvalidSignatureError, match="not trusted"):
        verify(folder, signed(folder, OTHER))


def edited(bundle: bytes, edit: Callable[[dict[str, Any]], object], *, payload: bool) -> bytes:
    found = json.loads(bundle)
    envelope = found["dsseEnvelope"]
    if payload:
        statement = json.loads(b64decode(envelope["payload"]))
        edit(statement)
        text = json.dumps(statement).encode()
        envelope["payload"] = b64encode(text).decode()
        message = b"DSSEv1 28 application/vnd.in-toto+json %d %b" % (len(text), text)
        envelope["signatures"][0]["sig"] = b64encode(KEY.sign(message)).decode()
    else:
        edit(found)
    return json.dumps(found).encode()


def set_hint(bundle: dict[str, Any]) -> None:
    """The name of a trusted key on a signature by another one."""
    bundle["verificationMaterial"]["publicKey"]["hint"] = KEY.public.key_id


def test_a_signature_under_the_name_of_a_trusted_key_does_not_verify(folder: Path) -> None:
    with pytest.raises(InvalidSignatureError):
        verify(folder, edited(signed(folder, OTHER), set_hint, payload=False))


@pytest.mark.parametrize(
    "edit",
    [
        lambda bundle: bundle.update(mediaType="other"),
        lambda bundle: bundle["dsseEnvelope"].update(payloadType="text/plain"),
        lambda bundle: bundle["dsseEnvelope"].update(signatures=[]),
        lambda bundle: bundle["dsseEnvelope"]["signatures"].append({"sig": ""}),
        lambda bundle: bundle["dsseEnvelope"]["signatures"][0].update(sig="%%"),
        lambda bundle: bundle["dsseEnvelope"]["signatures"][0].update(sig=""),
        lambda bundle: bundle["dsseEnvelope"].update(payload="e30="),
        lambda bundle: bundle.pop("dsseEnvelope"),
        lambda bundle: bundle.pop("verificationMaterial"),
    ],
)
def test_an_edited_bundle_does_not_verify(
    folder: Path, edit: Callable[[dict[str, Any]], object]
) -> None:
    with pytest.raises(InvalidSignatureError):
        verify(folder, edited(signed(folder), edit, payload=False))


@pytest.mark.parametrize(
    "edit",
    [
        lambda statement: statement.update(predicateType="other"),
        lambda statement: statement.update(_type="other"),
        lambda statement: statement["subject"][0]["digest"].update(sha256="00" * 32),
        lambda statement: statement["subject"].append(statement["subject"][0]),
        lambda statement: statement["predicate"]["resources"][0].update(algorithm="md5"),
        lambda statement: statement["predicate"]["resources"][0].update(digest="zz"),
        lambda statement: statement["predicate"]["serialization"].update(method="shards"),
        lambda statement: statement["predicate"]["resources"].append(
            statement["predicate"]["resources"][0]
        ),
        lambda statement: statement["predicate"].pop("resources"),
    ],
)
def test_a_signed_statement_of_another_form_does_not_verify(
    folder: Path, edit: Callable[[dict[str, Any]], object]
) -> None:
    with pytest.raises(InvalidSignatureError):
        verify(folder, edited(signed(folder), edit, payload=True))


def test_what_a_statement_exempts_counts_for_nothing(folder: Path) -> None:
    def exempt(statement: dict[str, Any]) -> None:
        statement["predicate"]["serialization"]["ignore_paths"] = ["added.json"]

    bundle = edited(signed(folder), exempt, payload=True)
    verify(folder, bundle)
    (folder / "added.json").write_text("")
    with pytest.raises(InvalidSignatureError, match="not signed"):
        verify(folder, bundle)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"\xff", b"[" * 10_000, b" " * (BUNDLE_BYTES_MAX + 1)]
)
def test_bytes_that_are_no_bundle_do_not_verify(data: bytes) -> None:
    with pytest.raises(InvalidSignatureError):
        verify_bundle(data, TRUSTED)


def test_a_key_is_read_back_from_its_text() -> None:
    again = SigningKey.from_pem(KEY.pem())
    assert again.public.key_id == KEY.public.key_id == PublicKey.from_pem(KEY.public.pem).key_id


def pem_of(key: Any) -> bytes:
    return bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"key",
        KEY.public.pem,
        pem_of(ec.generate_private_key(ec.SECP384R1())),
        pem_of(ed25519.Ed25519PrivateKey.generate()),
    ],
    ids=["empty", "text", "public", "P-384", "Ed25519"],
)
def test_other_keys_are_refused(pem: bytes) -> None:
    with pytest.raises(InvalidKeyError):
        SigningKey.from_pem(pem)
    if pem != KEY.public.pem:
        with pytest.raises(InvalidKeyError):
            PublicKey.from_pem(pem)


def test_a_bundle_of_the_package_model_signing_verifies(tmp_path: Path) -> None:
    """Made by `model_signing sign key` of model-signing 1.1.1."""
    made = Path(__file__).parent / "foreign_bundle"
    (tmp_path / "sub").mkdir()
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "sub" / "model.safetensors").write_text("weights")
    key = PublicKey.from_pem((made / "key.pem").read_bytes())
    signed_digests = verify_bundle((made / "bundle.json").read_bytes(), {key.key_id: key})
    require_same_files(signed_digests, scan_folder(tmp_path))


VERSION = "5" * 64


def test_a_signature_of_the_version_lets_it_load(folder: Path) -> None:
    files = scan_folder(folder)
    verify_version(sign_files(KEY, VERSION, files), TRUSTED, version=VERSION, files=files)


@pytest.mark.parametrize("name", ["model", "6" * 64, "", VERSION.upper().replace("5", "A")])
def test_a_signature_under_another_name_lets_no_version_load(folder: Path, name: str) -> None:
    files = scan_folder(folder)
    bundle = sign_files(KEY, name, files)
    assert verify_bundle(bundle, TRUSTED)
    with pytest.raises(InvalidSignatureError, match="another version"):
        verify_version(bundle, TRUSTED, version=VERSION, files=files)


def test_a_signature_of_other_files_lets_no_version_load(folder: Path) -> None:
    files = scan_folder(folder)
    bundle = sign_files(KEY, VERSION, files)
    flip(folder)
    with pytest.raises(InvalidSignatureError, match="differs"):
        verify_version(bundle, TRUSTED, version=VERSION, files=scan_folder(folder))


def test_an_untrusted_key_lets_no_version_load(folder: Path) -> None:
    files = scan_folder(folder)
    bundle = sign_files(OTHER, VERSION, files)
    with pytest.raises(InvalidSignatureError, match="not trusted"):
        verify_version(bundle, TRUSTED, version=VERSION, files=files)
