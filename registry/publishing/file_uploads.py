"""Uploads the files of a manifest, each named by its digest and hashed again while it is read.

A file that the store has in the same size is not sent again, so a push that broke goes on where it
was, and versions share the files that they have in common. To repair the store, its files can be
hashed first, and those that differ are sent again.
"""

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from pathlib import Path
from threading import Event
from typing import Final

from core.errors import Disposition, MillraceError
from registry.manifests.manifest import Manifest, ManifestFile
from registry.manifests.model_folder import open_regular
from registry.manifests.model_objects import file_key
from registry.publishing.stored_files import stored_problem
from registry.transfers import (
    THREADS,
    ByteProgress,
    Report,
    TransferStoppedError,
    report_nothing,
    run_each,
)
from storage.objects.errors import ObjectExistsError, ObjectNotFoundError
from storage.objects.object_store import ObjectStore

_BLOCK_BYTES: Final = 1024 * 1024


class ModelFileChangedError(MillraceError):
    """A file of the model changed while it was published."""

    code = "model_file_changed"
    disposition = Disposition.REJECT


class FileUploads:
    """Uploads of one folder."""

    def __init__(self, objects: ObjectStore, folder: Path, report: Report = report_nothing) -> None:
        """`folder` has the files of the manifests to come."""
        self._objects, self._folder, self._report = objects, folder, report

    def run(self, manifest: Manifest, *, replaces: bool = False) -> int:
        """Upload what is missing, a few files at once; return the bytes that were sent.

        When it returns, the store has every file of the manifest. With `replaces`, every stored
        file is read, and one of another content replaced. Raises ModelFileChangedError,
        InvalidManifestError, ObjectStoreFullError, ObjectStoreUnavailableError, OSError.
        """
        find = self._altered_files if replaces else partial(missing_files, self._objects)
        missing = find(manifest)
        total = sum(file.size for file in missing)
        progress = ByteProgress("upload", total, self._report)
        run_each(lambda file, stop: self._upload(file, progress, stop), missing)
        return total

    def _altered_files(self, manifest: Manifest) -> list[ManifestFile]:
        """Return the files that the store lacks or has altered; one for each digest."""
        files = list({file.sha256: file for file in manifest.files}.values())
        progress = ByteProgress("check", sum(file.size for file in files), self._report)
        altered: list[ManifestFile] = []

        def check(file: ManifestFile, stop: Event) -> None:
            if not stop.is_set() and stored_problem(self._objects, file) is not None:
                altered.append(file)
            progress.advance(file.size)

        run_each(check, files)
        return altered

    def _upload(self, file: ManifestFile, progress: ByteProgress, stop: Event) -> None:
        digest, size = sha256(), 0
        key = file_key(file.sha256)
        descriptor = open_regular(self._folder, file.path)
        with (
            os.fdopen(descriptor, "rb", buffering=0) as content,
            self._objects.begin_upload(key) as upload,
        ):
            while size <= file.size and (block := content.read(_BLOCK_BYTES)):
                if stop.is_set():
                    raise TransferStoppedError
                size += len(block)
                digest.update(block)
                upload.write(block)
                progress.advance(len(block))
            if size != file.size or digest.hexdigest() != file.sha256:
                raise ModelFileChangedError(
                    f"{file.path!r} changed while it was published: publish the model again."
                )
            is_absent = _stored_size(self._objects, key) is None
            with contextlib.suppress(ObjectExistsError):  # another push was faster
                upload.complete(if_absent=is_absent)  # one of another content is replaced


def missing_files(objects: ObjectStore, manifest: Manifest) -> list[ManifestFile]:
    """Return the files that the store lacks, or has in another size; one for each digest."""
    files = list({file.sha256: file for file in manifest.files}.values())
    with ThreadPoolExecutor(THREADS) as pool:
        sizes = pool.map(lambda file: _stored_size(objects, file_key(file.sha256)), files)
        return [file for file, size in zip(files, sizes, strict=True) if size != file.size]


def _stored_size(objects: ObjectStore, key: str) -> int | None:
    try:
        return objects.size(key)
    except ObjectNotFoundError:
        return None
