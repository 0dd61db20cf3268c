"""Checks a version again: every object in the store, every signature, and the keys."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from registry.errors import InvalidModelError
from registry.manifests.manifest import Manifest, encode_manifest
from registry.manifests.model_objects import manifest_key, provenance_key, signature_key
from registry.publishing.stored_files import verify_files
from registry.signing.keys import PublicKey
from registry.signing.model_signature import (
    BUNDLE_BYTES_MAX,
    InvalidSignatureError,
    require_same_files,
    verify_bundle,
    verify_version,
)
from registry.store.keys import list_keys
from registry.store.published_objects import provenance_signers
from registry.store.version_details import VersionSignature, read_details
from storage.objects.errors import ObjectNotFoundError
from storage.objects.object_store import ObjectStore, read_object


@dataclass(frozen=True, slots=True)
class CheckedPart:
    """A file, the manifest or a signature, and what is wrong with it; None: nothing."""

    kind: str  # "file", "manifest", "signature", or "provenance": a signature of files alone
    name: str
    problem: str | None


@dataclass(frozen=True, slots=True)
class VersionToCheck:
    """What the database knows of a version, for `check_version`."""

    version: str
    manifest: Manifest
    signatures: Sequence[tuple[VersionSignature, PublicKey]]
    keys: Mapping[str, PublicKey]

    @property
    def file_bytes(self) -> int:
        """Bytes that a check reads."""
        return sum(file.size for file in self.manifest.files)


def read_version_to_check(connection: sa.Connection, text: str) -> VersionToCheck:
    """Return the signed version that a text means. Raises ModelNotFoundError, InvalidModelError."""
    details = read_details(connection, text)
    if details.manifest is None:
        raise InvalidModelError(
            f"{details.model.id} has no manifest to verify: it is {details.model.verification}."
        )
    keys = {row.key_id: PublicKey.from_pem(row.pem.encode()) for row in list_keys(connection)}
    signatures = [(one, keys[one.key_id]) for one in details.signatures]
    return VersionToCheck(details.model.version, details.manifest, signatures, keys)


def check_version(
    objects: ObjectStore, known: VersionToCheck, report: Callable[[CheckedPart], None]
) -> bool:
    """Report each part of a version; return whether a replica could load it.

    That needs all files and the manifest, and one signature that verifies, by a key that is not
    revoked. Each signature of the files alone should be by a known key; it is reported and does not
    count. Raises errors of the store.
    """
    version, manifest = known.version, known.manifest
    is_sound = True
    manifest_problem = _stored_problem(objects, manifest_key(version), encode_manifest(manifest))
    report(CheckedPart("manifest", version, manifest_problem))
    is_sound &= manifest_problem is None
    is_signed = False
    for signature, key in known.signatures:
        problem = _signature_problem(objects, version, manifest, signature, key)
        report(CheckedPart("signature", signature.key_id, problem))
        is_signed |= problem is None
    for part in _provenance(objects, version, manifest, known.keys):
        report(part)
    for file, problem in verify_files(objects, manifest):
        report(CheckedPart("file", file.path, problem))
        is_sound &= problem is None
    return is_sound and is_signed


def _signature_problem(
    objects: ObjectStore,
    version: str,
    manifest: Manifest,
    signature: VersionSignature,
    key: PublicKey,
) -> str | None:
    """Return why a signature does not count; replicas read the stored one, and not the row."""
    trusted = {key.key_id: key}
    try:
        name = signature_key(version, key.key_id)
        stored = read_object(objects, name, length=BUNDLE_BYTES_MAX + 1)
        for bundle in (signature.bundle, stored):  # a key may sign again, with other bytes
            verify_version(bundle, trusted, version=version, files=manifest.files)
    except ObjectNotFoundError:
        return "is not stored"
    except InvalidSignatureError as invalid:
        return str(invalid)
    return None if signature.revoked_at is None else "its key is revoked"


def _provenance(
    objects: ObjectStore, version: str, manifest: Manifest, keys: Mapping[str, PublicKey]
) -> Iterator[CheckedPart]:
    """Yield the signatures that cover the files alone; none of them lets the version load."""
    for key_id in provenance_signers(objects, version):
        problem = None
        try:
            name = provenance_key(version, key_id)
            bundle = read_object(objects, name, length=BUNDLE_BYTES_MAX + 1)
            require_same_files(verify_bundle(bundle, keys), manifest.files)
        except ObjectNotFoundError:
            problem = "is not stored"
        except InvalidSignatureError as invalid:
            problem = str(invalid)
        yield CheckedPart("provenance", key_id, problem)


def _stored_problem(objects: ObjectStore, key: str, expected: bytes) -> str | None:
    """Return what is wrong with an object that the database has, too."""
    try:
        if objects.size(key) != len(expected) or read_object(objects, key) != expected:
            return "is stored with another content"
    except ObjectNotFoundError:
        return "is not stored"
    return None
