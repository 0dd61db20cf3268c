"""Publishes a model version: first its files, then its manifest, then its signatures.

    folder ─► manifest ─► files ─► manifest object ─► signature objects ─► (caller) registration

The caller registers the version last: a push that ends early leaves objects and no version.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from registry.manifests.manifest import Manifest, encode_manifest, version_of
from registry.manifests.model_objects import manifest_key, signature_key
from registry.publishing.file_uploads import FileUploads
from registry.signing.keys import PublicKey, SigningKey
from registry.signing.model_signature import (
    InvalidSignatureError,
    require_same_files,
    sign_files,
    verify_bundle,
    verify_version,
)
from registry.transfers import Report, report_nothing
from storage.objects.object_store import ObjectStore, write_object


@dataclass(frozen=True, slots=True)
class PublishedSignature:
    """A signature of a version."""

    key: PublicKey
    bundle: bytes
    lets_load: bool = True
    """False for one of another tool: it covers the files, and neither options nor base."""


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """A version whose objects are all in the store."""

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
) -> PublishedVersion:
    """Store every object of a version; those that are there are kept.

    Raises InvalidSignatureError without a signature that lets the version load, and the errors of
    `FileUploads.run`.
    """
    if not any(signature.lets_load for signature in signatures):
        raise InvalidSignatureError(
            "No signature is of this version, so no replica would load it: sign it."
        )
    data = encode_manifest(manifest)
    version = version_of(data)
    sent = FileUploads(objects, folder, report).run(manifest)
    write_object(objects, manifest_key(version), data)
    for signature in signatures:
        write_object(objects, signature_key(version, signature.key.key_id), signature.bundle)
    return PublishedVersion(version, manifest, data, signatures, sent)
