"""Signs the files of a model, and verifies what was signed, in the form of OpenSSF Model Signing.

    Sigstore bundle 0.3 ─► DSSE envelope ─► in-toto statement 1 ─► digest of each file

Other tools verify these signatures, and signatures of other tools verify here. Stricter than they:
a statement must list every file of the model and no hidden one, and what it exempts
(`ignore_paths`, links) counts for nothing.

Sources: OpenSSF Model Signing 1.0 (https://github.com/ossf/model-signing-spec), DSSE 1.0.2
(https://github.com/secure-systems-lab/dsse), in-toto Statement 1, Sigstore bundle format.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Final

import msgspec

from core.errors import Disposition, MillraceError
from registry.manifests.manifest import FILES_MAX, ManifestFile
from registry.signing.keys import PublicKey, SigningKey

BUNDLE_BYTES_MAX: Final = 16 * 1024 * 1024

_BUNDLE_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
_PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
_STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
_PREDICATE_TYPE: Final = "https://model_signing/signature/v1.0"


class InvalidSignatureError(MillraceError):
    """The signature of the model does not verify."""

    code = "model_signature_invalid"
    disposition = Disposition.REJECT


class _KeyHint(msgspec.Struct):
    hint: str = ""


class _Material(msgspec.Struct, rename="camel"):
    public_key: _KeyHint


class _EnvelopeSignature(msgspec.Struct):
    sig: str


class _Envelope(msgspec.Struct, rename="camel"):
    payload: str
    payload_type: str
    signatures: list[_EnvelopeSignature]


class _Bundle(msgspec.Struct, rename="camel"):
    media_type: str
    verification_material: _Material
    dsse_envelope: _Envelope


class _Subject(msgspec.Struct):
    name: str
    digest: dict[str, str]


class _Resource(msgspec.Struct):
    name: str
    digest: str
    algorithm: str


class _Predicate(msgspec.Struct):
    serialization: dict[str, Any]
    resources: list[_Resource]


class _Statement(msgspec.Struct, rename={"type": "_type", "predicate_type": "predicateType"}):
    type: str
    subject: list[_Subject]
    predicate_type: str
    predicate: _Predicate


def sign_files(key: SigningKey, name: str, files: Iterable[ManifestFile]) -> bytes:
    """Return a bundle, in JSON, that signs the digests of all files of the model `name`."""
    resources = [
        _Resource(file.path, file.sha256, "sha256")
        for file in sorted(files, key=lambda file: file.path)
    ]
    serialization = {
        "method": "files",
        "hash_type": "sha256",
        "allow_symlinks": False,
        "ignore_paths": [],
    }
    statement = _Statement(
        _STATEMENT_TYPE,
        [_Subject(name, {"sha256": _root_digest(resources)})],
        _PREDICATE_TYPE,
        _Predicate(serialization, resources),
    )
    payload = msgspec.json.encode(statement)
    signature = b64encode(key.sign(_signed_bytes(payload))).decode()
    envelope = _Envelope(
        b64encode(payload).decode(), _PAYLOAD_TYPE, [_EnvelopeSignature(signature)]
    )
    return msgspec.json.encode(
        _Bundle(_BUNDLE_TYPE, _Material(_KeyHint(key.public.key_id)), envelope)
    )


def verify_bundle(bundle: bytes, trusted: Mapping[str, PublicKey]) -> dict[str, str]:
    """Return the digest of each file that a trusted key has signed, by path.

    `trusted` has the keys by their id. Compare the result with the files of the model by
    `require_same_files`. Raises InvalidSignatureError.
    """
    return _signed_digests(_verified_statement(bundle, trusted))


def verify_version(
    bundle: bytes,
    trusted: Mapping[str, PublicKey],
    *,
    version: str,
    files: Iterable[ManifestFile],
) -> None:
    """Raise InvalidSignatureError unless a trusted key has signed this version and these files.

    The name of the signed subject must be `version`, the digest of the manifest, so the signature
    covers options, sampling defaults and base model, too. A bundle that signs the same files under
    another name, such as one of another tool, does not let a version load.
    """
    statement = _verified_statement(bundle, trusted)
    require_same_files(_signed_digests(statement), files)
    if [subject.name for subject in statement.subject] != [version]:
        raise InvalidSignatureError("The signature is for another version, or for files alone.")


def _verified_statement(bundle: bytes, trusted: Mapping[str, PublicKey]) -> _Statement:
    """Return the statement of a bundle that a trusted key has signed."""
    if len(bundle) > BUNDLE_BYTES_MAX:
        raise InvalidSignatureError(f"The signature has more than {BUNDLE_BYTES_MAX} bytes.")
    found = _decode(_Bundle, bundle, "signature")
    envelope = found.dsse_envelope
    if found.media_type != _BUNDLE_TYPE or envelope.payload_type != _PAYLOAD_TYPE:
        raise InvalidSignatureError("The signature has an unknown media type.")
    if len(envelope.signatures) != 1:
        raise InvalidSignatureError("The signature has not exactly one signer.")
    key = trusted.get(found.verification_material.public_key.hint)
    if key is None:
        raise InvalidSignatureError("The key of the signature is not trusted.")
    payload = _decode_base64(envelope.payload)
    if not key.has_signed(_signed_bytes(payload), _decode_base64(envelope.signatures[0].sig)):
        raise InvalidSignatureError
    statement: _Statement = _decode(_Statement, payload, "signed statement")
    return statement


def require_same_files(signed: Mapping[str, str], files: Iterable[ManifestFile]) -> None:
    """Raise InvalidSignatureError unless a model has exactly the files that were signed."""
    present = {file.path: file.sha256 for file in files}
    for path in sorted(signed.keys() | present.keys()):
        if path not in signed:
            raise InvalidSignatureError(f"The file {path!r} is not signed.")
        if path not in present:
            raise InvalidSignatureError(f"The signed file {path!r} is missing.")
        if signed[path] != present[path]:
            raise InvalidSignatureError(f"The file {path!r} differs from the one that was signed.")


def _signed_digests(statement: _Statement) -> dict[str, str]:
    resources = statement.predicate.resources
    is_known = (
        statement.type == _STATEMENT_TYPE
        and statement.predicate_type == _PREDICATE_TYPE
        and statement.predicate.serialization.get("method") == "files"
        and all(resource.algorithm == "sha256" for resource in resources)
    )
    if not is_known:
        raise InvalidSignatureError("The signed statement is of an unknown type.")
    digests = {resource.name: resource.digest for resource in resources}
    if not len(digests) == len(resources) <= FILES_MAX:
        raise InvalidSignatureError("The signed statement names a file twice, or too many files.")
    if [one.digest.get("sha256") for one in statement.subject] != [_root_digest(resources)]:
        raise InvalidSignatureError("The signed statement contradicts itself.")
    return digests


def _root_digest(resources: Iterable[_Resource]) -> str:
    """Return the SHA-256 of all digests, in the order of the statement."""
    root = sha256()
    try:
        for resource in resources:
            root.update(bytes.fromhex(resource.digest))
    except ValueError:
        raise InvalidSignatureError("The signed statement has a digest that is none.") from None
    return root.hexdigest()


def _signed_bytes(payload: bytes) -> bytes:
    """Return what is signed: DSSE's pre-authentication encoding of a payload."""
    kind = _PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def _decode(kind: type[Any], data: bytes, what: str) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidSignatureError(f"The {what} cannot be read.") from None


def _decode_base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise InvalidSignatureError("The signature is not valid base64.") from None
