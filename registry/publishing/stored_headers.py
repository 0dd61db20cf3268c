"""Copies what a memory plan reads of a stored version: its configuration and weight headers."""

from pathlib import Path
from typing import Final

from registry.manifests.manifest import Manifest, ManifestFile
from registry.manifests.model_objects import file_key
from registry.memory_plan.model_folder_plan import INDEX_BYTES_MAX
from registry.memory_plan.model_shape import CONFIG_BYTES_MAX
from registry.memory_plan.safetensors_header import HEADER_BYTES_MAX
from storage.objects.object_store import ObjectReader, read_object

_WEIGHTS: Final = ".safetensors"
_SMALL_FILES: Final = {
    "config.json": CONFIG_BYTES_MAX,
    "model.safetensors.index.json": INDEX_BYTES_MAX,
}
_LENGTH_BYTES: Final = 8
_FIRST_BYTES: Final = 256 * 1024
"""The first read of a file of weights: most headers are shorter."""


def copy_headers(objects: ObjectReader, manifest: Manifest, folder: Path) -> None:
    """Write the files of a version that a memory plan reads to an empty folder.

    Files of weights have their header and their size; the rest is a hole, and is not read from the
    store. Nothing is verified: a plan says what the model needs, and loads nothing. Raises OSError
    and errors of the store.
    """
    for file in manifest.files:
        if file.path.endswith(_WEIGHTS) and "/" not in file.path:
            _copy_header(objects, file, folder)
        elif (bytes_max := _SMALL_FILES.get(file.path)) is not None:
            data = read_object(objects, file_key(file.sha256), length=bytes_max + 1)
            (folder / file.path).write_bytes(data)


def _copy_header(objects: ObjectReader, file: ManifestFile, folder: Path) -> None:
    key = file_key(file.sha256)
    data = read_object(objects, key, length=_FIRST_BYTES)
    claimed = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    end = min(claimed, _LENGTH_BYTES + HEADER_BYTES_MAX, file.size)
    if end > len(data):
        data += read_object(objects, key, offset=len(data), length=end - len(data))
    with (folder / file.path).open("wb") as copy:
        copy.write(data[:end])
        copy.truncate(file.size)
