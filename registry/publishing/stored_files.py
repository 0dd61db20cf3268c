"""Hashes the stored files of a version, and says what is wrong with them."""

from collections.abc import Iterator
from hashlib import sha256

from registry.manifests.manifest import Manifest, ManifestFile
from registry.manifests.model_objects import file_key
from storage.objects.errors import ObjectNotFoundError
from storage.objects.object_store import ObjectReader


def verify_files(
    objects: ObjectReader, manifest: Manifest
) -> Iterator[tuple[ManifestFile, str | None]]:
    """Read and hash every file of a version; yield each with what is wrong with it, or None."""
    for file in manifest.files:
        yield file, stored_problem(objects, file)


def stored_problem(objects: ObjectReader, file: ManifestFile) -> str | None:
    """Read and hash a stored file; return what is wrong with it, or None."""
    digest, size = sha256(), 0
    try:
        with objects.read(file_key(file.sha256)) as blocks:
            for block in blocks:
                digest.update(block)
                size += len(block)
    except ObjectNotFoundError:
        return "not stored"
    if size != file.size:
        return f"has {size} bytes instead of {file.size}"
    return None if digest.hexdigest() == file.sha256 else "has another content"
