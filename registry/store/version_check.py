"""Checks a version again: every object in the store, every signature, and the keys."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from registry.manifests.manifest import Manifest, encode_manifest
from registry.manifests.model_objects import manifest_key, signature_key
from registry.signing.keys import PublicKey
from registry.signing.model_signature import InvalidSignatureError, verify_version
from registry.store.published_objects import verify_files
from registry.store.version_details import VersionSignature
from storage.objects.errors import ObjectNotFoundError
from storage.objects.object_store import ObjectStore, read_object


@dataclass(frozen=True, slots=True)
class CheckedPart:
    """A file, the manifest or a signature, and what is wrong with it; None: nothing."""

    kind: str  # "file", "manifest" or "signature"
    name: str
    problem: str | None


def check_version(
    objects: ObjectStore,
    version: str,
    manifest: Manifest,
    signatures: Sequence[tuple[VersionSignature, PublicKey]],
    report: Callable[[CheckedPart], None],
) -> bool:
    """Report each part of a version; return whether a replica could load it.

    That needs all files and the manifest, and one signature that verifies, by a key that is not
    revoked. Raises errors of the store.
    """
    is_sound = True
    manifest_problem = _stored_problem(objects, manifest_key(version), encode_manifest(manifest))
    report(CheckedPart("manifest", version, manifest_problem))
    is_sound &= manifest_problem is None
    is_signed = False
    for signature, key in signatures:
        problem = _signature_problem(objects, version, manifest, signature, key)
        report(CheckedPart("signature", signature.key_id, problem))
        is_signed |= problem is None
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
    try:
        trusted = {key.key_id: key}
        verify_version(signature.bundle, trusted, version=version, files=manifest.files)
    except InvalidSignatureError as invalid:
        return str(invalid)
    if signature.revoked_at is not None:
        return "its key is revoked"
    return _stored_problem(objects, signature_key(version, key.key_id), signature.bundle)


def _stored_problem(objects: ObjectStore, key: str, expected: bytes) -> str | None:
    """Return what is wrong with an object that the database has, too."""
    try:
        if objects.size(key) != len(expected) or read_object(objects, key) != expected:
            return "is stored with another content"
    except ObjectNotFoundError:
        return "is not stored"
    return None
