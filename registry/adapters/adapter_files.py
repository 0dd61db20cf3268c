"""Reads what the check of an adapter needs from its files, and from those of its base model.

Of weights only the headers are read, so an adapter is checked before anything is uploaded.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from registry.adapters.adapter_check import (
    CONFIG_NAME,
    LENGTH_BYTES,
    WEIGHTS_NAME,
    AdapterConfig,
    InvalidAdapterError,
    TensorInfo,
    check_adapter,
    header_length,
    parse_header,
)
from registry.manifests.manifest import Manifest
from registry.manifests.model_folder import open_regular
from registry.manifests.model_objects import file_key
from storage.objects.errors import ObjectNotFoundError
from storage.objects.object_store import ObjectReader, read_object

CONFIG_BYTES_MAX: Final = 1024 * 1024
RANK_MAX: Final = 512
"""The largest rank that vLLM knows."""

_SAFETENSORS: Final = ".safetensors"

ReadStart: TypeAlias = Callable[[str, int], bytes]
"""Returns up to that many first bytes of a file; raises FileNotFoundError for none."""


def folder_reader(folder: Path) -> ReadStart:
    """Return what reads the files of a folder."""

    def read(path: str, length: int) -> bytes:
        with os.fdopen(open_regular(folder, path), "rb") as file:
            return file.read(length)

    return read


def stored_reader(objects: ObjectReader, manifest: Manifest) -> ReadStart:
    """Return what reads the stored files of a version."""
    digests = {file.path: file.sha256 for file in manifest.files}

    def read(path: str, length: int) -> bytes:
        if path not in digests:
            raise FileNotFoundError(path)
        try:
            return read_object(objects, file_key(digests[path]), length=length)
        except ObjectNotFoundError:
            raise FileNotFoundError(path) from None

    return read


@dataclass(frozen=True, slots=True)
class AdapterBase:
    """The model that an adapter adapts, and the largest rank that its replicas take."""

    version: str
    manifest: Manifest
    rank_max: int = RANK_MAX


def check_adapter_files(
    adapter: ReadStart, base: AdapterBase, objects: ObjectReader
) -> AdapterConfig:
    """Return the configuration of an adapter that fits its base model, which `objects` has.

    Raises InvalidAdapterError, InvalidManifestError for a link, errors of the store, OSError.
    """
    try:
        config = adapter(CONFIG_NAME, CONFIG_BYTES_MAX + 1)
        if len(config) > CONFIG_BYTES_MAX:
            raise InvalidAdapterError(f"{CONFIG_NAME} has more than {CONFIG_BYTES_MAX} bytes.")
        tensors = _read_header(adapter, WEIGHTS_NAME)
    except FileNotFoundError:
        raise InvalidAdapterError(f"An adapter has {CONFIG_NAME} and {WEIGHTS_NAME}.") from None
    return check_adapter(
        config,
        tensors,
        base=base.version,
        base_tensors=_base_tensors(objects, base.manifest),
        rank_max=base.rank_max,
    )


def _base_tensors(objects: ObjectReader, base: Manifest) -> dict[str, TensorInfo]:
    found: dict[str, TensorInfo] = {}
    read = stored_reader(objects, base)
    for path in (file.path for file in base.files if file.path.endswith(_SAFETENSORS)):
        try:
            found |= _read_header(read, path)
        except FileNotFoundError:
            raise InvalidAdapterError(f"The file {path!r} of the base is not stored.") from None
        except InvalidAdapterError as failure:
            raise InvalidAdapterError(f"The file {path!r} of the base: {failure}") from None
    return found


def _read_header(read: ReadStart, path: str) -> dict[str, TensorInfo]:
    length = header_length(read(path, LENGTH_BYTES))
    return parse_header(read(path, LENGTH_BYTES + length))
