"""Publishes a model version: first its files, then its manifest, then its signatures.

    folder ─► manifest ─► files ─► manifest object ─► signature objects ─► (caller) registration

The caller registers the version last: a push that ends early leaves objects and no version.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from registry.manifests.manifest import Manifest, encode_manifest, version_of
from registry.manifests.model_objects import manifest_key, provenance_key, signature_key
from registry.publishing.file_uploads import FileUploads, missing_files
from registry.signing.keys import PublicKey, SigningKey
from registry.signing.model_signature import (
    BUNDLE_BYTES_MAX,
    InvalidSignatureError,
    require_same_files,
    sign_files,
    verify_bundle,
    verify_version,
)
from registry.transfers import Report, report_nothing
from storage.objects.errors import ObjectExistsError, ObjectNotFoundError
from storage.objects.object_store import ObjectStore, read_object, write_object


@dataclass(frozen=True, slots=True)
class PublishedSignature:
    """A signature of a version."""

    key: PublicKey
    bundle: bytes
    lets_load: bool = True
    """False for one of another tool: it covers the files, and neither options nor base."""


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """A version whose objects are all in the store, with its signatures as they are stored."""

    version: str
    manifest: Manifest
    manifest_bytes: bytes
    signatures: Sequence[PublishedSignature]
    sent_bytes: int


def sign_version(key: SigningKey, manifest: Manifest) -> PublishedSignature:
    """Return the signature of a manifest's version and files."""
    version = version_of(encode_manifest(manifest))
    return PublishedSignature(key.public, sign_files(key, version, manifest.files))


def read_signature(manifest: Manifest, bundle: bytes, key: PublicKey) -> PublishedSignature:
    """Verify a bundle that was made elsewhere. Raises InvalidSignatureError."""
    trusted: Mapping[str, PublicKey] = {key.key_id: key}
    require_same_files(verify_bundle(bundle, trusted), manifest.files)
    version = version_of(encode_manifest(manifest))
    try:
        verify_version(bundle, trusted, version=version, files=manifest.files)
    except InvalidSignatureError:  # of the files alone: the package model-signing knows no version
        return PublishedSignature(key, bundle, lets_load=False)
    return PublishedSignature(key, bundle)


def publish_version(
    objects: ObjectStore,
    folder: Path,
    manifest: Manifest,
    signatures: Sequence[PublishedSignature],
    report: Report = report_nothing,
    *,
    replaces: bool = False,
) -> PublishedVersion:
    """Store every object of a version; those that are there are kept.

    With `replaces`, stored files are hashed, and those that differ are replaced.

    Raises InvalidSignatureError without a signature that lets the version load, and the errors of
    `FileUploads.run`.
    """
    if not any(signature.lets_load for signature in signatures):
        raise InvalidSignatureError(
            "No signature is of this version, so no replica would load it: sign it."
        )
    data = encode_manifest(manifest)
    version = version_of(data)
    sent = FileUploads(objects, folder, report).run(manifest, replaces=replaces)
    write_object(objects, manifest_key(version), data)
    stored = [_store_signature(objects, version, manifest, one) for one in signatures]
    return PublishedVersion(version, manifest, data, stored, sent)


def is_stored(objects: ObjectStore, published: PublishedVersion) -> bool:
    """Whether the store still has what a push found there or wrote."""
    signatures = [signature for signature in published.signatures if signature.lets_load]
    try:
        objects.size(manifest_key(published.version))
        for signature in signatures:
            objects.size(signature_key(published.version, signature.key.key_id))
    except ObjectNotFoundError:
        return False
    return not missing_files(objects, published.manifest)


def _store_signature(
    objects: ObjectStore, version: str, manifest: Manifest, signature: PublishedSignature
) -> PublishedSignature:
    """Store a signature, unless the store has one by its key that lets the version load.

    Return the one that is stored. Of the files alone, a signature has its own place, so that it
    never replaces one that lets the version load.
    """
    key = signature.key
    if not signature.lets_load:
        write_object(objects, provenance_key(version, key.key_id), signature.bundle)
        return signature
    name = signature_key(version, key.key_id)
    try:
        with objects.begin_upload(name) as upload:
            upload.write(signature.bundle)
            upload.complete(if_absent=True)
    except ObjectExistsError:
        found = _loading_bundle(objects, name, version, manifest, key)
        if found is not None:
            return replace(signature, bundle=found)
        write_object(objects, name, signature.bundle)
    return signature


def _loading_bundle(
    objects: ObjectStore, name: str, version: str, manifest: Manifest, key: PublicKey
) -> bytes | None:
    """Return a stored signature that lets the version load; None if it is altered or gone."""
    try:
        bundle = read_object(objects, name, length=BUNDLE_BYTES_MAX + 1)
        verify_version(bundle, {key.key_id: key}, version=version, files=manifest.files)
    except (ObjectNotFoundError, InvalidSignatureError):
        return None
    return bundle
