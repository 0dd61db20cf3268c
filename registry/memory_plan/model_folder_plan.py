"""Plans the memory of a model folder: reads its configuration and the headers of its weights."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from registry.manifests.model_folder import open_regular
from registry.memory_plan.memory_options import MemoryOptions
from registry.memory_plan.memory_plan import MEMORY_SHARE, MemoryPlan, plan_memory
from registry.memory_plan.model_shape import CONFIG_BYTES_MAX, InvalidConfigError, parse_config
from registry.memory_plan.safetensors_header import InvalidWeightsError, Tensor, read_header

FILES_MAX: Final = 10_000
INDEX_BYTES_MAX: Final = 64 * 1024 * 1024
_INDEX: Final = "model.safetensors.index.json"
_ENDING: Final = ".safetensors"


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def plan_of_folder(
    folder: Path,
    options: Mapping[str, Any],
    device_bytes: int,
    memory_share: float = MEMORY_SHARE,
) -> MemoryPlan:
    """Return the memory plan of the model in a folder, on devices of `device_bytes` each.

    `options` are a version's engine options, with `adapters_max` and `adapter_rank_max` of a
    replica; others are ignored. Raises InvalidConfigError, InvalidWeightsError,
    InvalidOptionError, and InvalidManifestError for files that are links.
    """
    config = _read_file(folder, "config.json", CONFIG_BYTES_MAX)
    if config is None:
        raise InvalidConfigError("The model has no config.json.")
    known = MemoryOptions.from_mapping(options)
    return plan_memory(
        read_tensors(folder), parse_config(config), known, device_bytes, memory_share
    )


def read_tensors(folder: Path) -> list[Tensor]:
    """Return the tensors of all weight files that vLLM loads from a folder.

    Raises InvalidWeightsError if a file cannot be read or a tensor is in two files.
    """
    found: dict[str, Tensor] = {}
    for name in _weight_files(folder):
        for tensor in _read_tensors(folder, name):
            if tensor.name in found:
                raise InvalidWeightsError(f"The tensor {tensor.name[:128]!r} is in two files.")
            found[tensor.name] = tensor
    if not found:
        raise InvalidWeightsError("The model has no weights in safetensors files.")
    return list(found.values())


def _weight_files(folder: Path) -> list[str]:
    """Return the files that the index lists, or else all; `consolidated` is a second copy."""
    names = sorted(
        entry.name
        for entry in os.scandir(folder)
        if entry.name.endswith(_ENDING) and not entry.name.startswith(".")
    )
    if len(names) > FILES_MAX:
        raise InvalidWeightsError(f"The model has more than {FILES_MAX} weight files.")
    data = _read_file(folder, _INDEX, INDEX_BYTES_MAX)
    if data is not None:
        return _indexed_files(data, names)
    plain = [name for name in names if not name.startswith("consolidated")]
    return plain or names


def _indexed_files(data: bytes, present: list[str]) -> list[str]:
    try:
        index = msgspec.json.decode(data, type=_Index)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidWeightsError(f"{_INDEX} is not valid.") from None
    names = sorted(set(index.weight_map.values()))
    for name in names:
        if name not in present:
            raise InvalidWeightsError(f"{_INDEX} names the file {name[:128]!r}, which is missing.")
    return names


def _read_tensors(folder: Path, name: str) -> list[Tensor]:
    with os.fdopen(open_regular(folder, name), "rb") as file:
        try:
            return read_header(file, os.fstat(file.fileno()).st_size)
        except InvalidWeightsError as failure:
            raise InvalidWeightsError(f"{name}: {failure}") from None


def _read_file(folder: Path, name: str, bytes_max: int) -> bytes | None:
    """Return the content of a small file; None if it is missing."""
    try:
        descriptor = open_regular(folder, name)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise InvalidConfigError(f"{name} has more than {bytes_max} bytes.")
    return data
