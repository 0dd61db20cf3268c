"""Downloads one file of a model from the object store and hashes it while it is written."""

from collections.abc import Callable
from hashlib import sha256
from typing import Final

from gpu_consumers.weights.cache_locks import Wait
from gpu_consumers.weights.errors import ModelRefusedError, RefusalReason, StagingStoppedError
from registry.manifests.manifest import ManifestFile
from registry.manifests.model_objects import file_key
from storage.objects.errors import ObjectNotFoundError, ObjectStoreUnavailableError
from storage.objects.object_store import ObjectReader

_TRIES_MAX: Final = 6
"""Tries in a row that bring no byte: about 30 s besides the client's own retries."""

_BACKOFF_S: Final = 1.0


def download_file(
    objects: ObjectReader, file: ManifestFile, write: Callable[[bytes], object], wait: Wait
) -> None:
    """Write the bytes of a file, block by block, and check their number and digest.

    A read that the store ends continues where it stopped. Raises ModelRefusedError for a missing,
    truncated, longer or altered object, ObjectStoreUnavailableError, StagingStoppedError, and what
    `write` raises.
    """
    digest, count, tries = sha256(), 0, 0
    while True:
        try:
            with objects.read(file_key(file.sha256), offset=count) as blocks:
                for block in blocks:
                    if wait(0):
                        raise StagingStoppedError
                    count += len(block)
                    if count > file.size:
                        raise _refusal(file, f"has more than its {file.size} bytes")
                    write(block)
                    digest.update(block)
                    tries = 0
            break
        except ObjectNotFoundError:
            raise _refusal(file, "is not in the object store") from None
        except ObjectStoreUnavailableError:
            tries += 1
            if tries >= _TRIES_MAX:
                raise
            if wait(_BACKOFF_S * 2 ** (tries - 1)):
                raise StagingStoppedError from None
    if count != file.size:
        raise _refusal(file, f"has {count} of its {file.size} bytes in the object store")
    if digest.hexdigest() != file.sha256:
        raise _refusal(file, f"has the digest {digest.hexdigest()} in the object store")


def _refusal(file: ManifestFile, what: str) -> ModelRefusedError:
    message = f"The file {file.path!r} ({file.sha256}) {what}."
    return ModelRefusedError(RefusalReason.FILE, message)
