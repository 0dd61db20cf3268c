"""Reads the small objects of a version, and whether the store has all of its files."""

from itertools import islice
from typing import Final

from core.errors import Disposition, MillraceError
from registry.manifests.manifest import (
    MANIFEST_BYTES_MAX,
    decode_manifest,
    version_of,
)
from registry.manifests.model_objects import (
    file_key,
    manifest_key,
    provenance_prefix,
    signature_key,
)
from registry.signing.model_signature import BUNDLE_BYTES_MAX
from storage.objects.errors import ObjectNotFoundError
from storage.objects.object_store import ObjectStore, read_object

_HEX: Final = frozenset("0123456789abcdef")
_DIGEST_CHARS: Final = 64
_SIGNERS_MAX: Final = 1000


class ModelObjectsMissingError(MillraceError):
    """Objects of the version are missing, or are not what the version says."""

    code = "model_objects_missing"
    disposition = Disposition.REJECT


def read_published(objects: ObjectStore, version: str, key_id: str) -> tuple[bytes, bytes]:
    """Return manifest and signature of a version whose files are all stored in their sizes.

    It asks the store once for each file, and does not read their content: that is for the replica
    that loads them, and for `verify_files`. Raises ModelObjectsMissingError, InvalidManifestError,
    InvalidOptionError, errors of the store.
    """
    if not (_is_digest(version) and _is_digest(key_id)):
        raise ModelObjectsMissingError("A version and the id of a key have 64 hex digits.")
    data = _read_small(objects, manifest_key(version), MANIFEST_BYTES_MAX, "manifest")
    if version_of(data) != version:
        raise ModelObjectsMissingError("The stored manifest is that of another version.")
    bundle = _read_small(objects, signature_key(version, key_id), BUNDLE_BYTES_MAX, "signature")
    for file in decode_manifest(data).files:
        try:
            size = objects.size(file_key(file.sha256))
        except ObjectNotFoundError:
            raise ModelObjectsMissingError(f"The file {file.path!r} is not stored.") from None
        if size != file.size:
            raise ModelObjectsMissingError(f"The file {file.path!r} is stored in another size.")
    return data, bundle


def provenance_signers(objects: ObjectStore, version: str) -> list[str]:
    """Return the ids of keys with a stored signature of the files alone, at most 1,000."""
    prefix = provenance_prefix(version)
    found = islice(objects.list(prefix), _SIGNERS_MAX)
    return sorted(info.key.removeprefix(prefix) for info in found)


def _read_small(objects: ObjectStore, key: str, bytes_max: int, what: str) -> bytes:
    try:
        if objects.size(key) > bytes_max:
            raise ModelObjectsMissingError(f"The stored {what} has more than {bytes_max} bytes.")
        return read_object(objects, key, length=bytes_max)
    except ObjectNotFoundError:
        raise ModelObjectsMissingError(f"The {what} is not stored.") from None


def _is_digest(text: str) -> bool:
    return len(text) == _DIGEST_CHARS and _HEX.issuperset(text)
