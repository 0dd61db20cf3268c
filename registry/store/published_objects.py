"""Reads the small objects of a version, and whether the store has all of its files."""

from itertools import islice
from typing import Final

from core.errors import Disposition, MillraceError
from registry.adapters.adapter_check import InvalidAdapterError
from registry.adapters.adapter_files import AdapterBase, check_adapter_files, stored_reader
from registry.manifests.manifest import (
    MANIFEST_BYTES_MAX,
    Manifest,
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
    that loads them, and for `verify_files`. Of an adapter and its base model it reads the headers,
    too. Raises ModelObjectsMissingError, InvalidManifestError, InvalidOptionError,
    InvalidAdapterError, errors of the store.
    """
    if not (_is_digest(version) and _is_digest(key_id)):
        raise ModelObjectsMissingError("A version and the id of a key have 64 hex digits.")
    data = _read_small(objects, manifest_key(version), MANIFEST_BYTES_MAX, "manifest")
    if version_of(data) != version:
        raise ModelObjectsMissingError("The stored manifest is that of another version.")
    bundle = _read_small(objects, signature_key(version, key_id), BUNDLE_BYTES_MAX, "signature")
    manifest = decode_manifest(data)
    for file in manifest.files:
        try:
            size = objects.size(file_key(file.sha256))
        except ObjectNotFoundError:
            raise ModelObjectsMissingError(f"The file {file.path!r} is not stored.") from None
        if size != file.size:
            raise ModelObjectsMissingError(f"The file {file.path!r} is stored in another size.")
    if manifest.base is not None:
        _check_adapter(objects, manifest, manifest.base)
    return data, bundle


def _check_adapter(objects: ObjectStore, manifest: Manifest, base: str) -> None:
    """Raise unless an adapter fits its base model; which rank replicas take is not known here."""
    try:
        data = _read_small(objects, manifest_key(base), MANIFEST_BYTES_MAX, "base model's manifest")
    except ModelObjectsMissingError as missing:
        raise InvalidAdapterError(str(missing)) from None
    if version_of(data) != base:
        raise InvalidAdapterError("The stored manifest of the base model is another one.")
    adapted = AdapterBase(base, decode_manifest(data))
    check_adapter_files(stored_reader(objects, manifest), adapted, objects)


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
