"""Describes a folder of model files by a manifest."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any, Final

import msgspec

from registry.engine_options.engine_options import InvalidOptionError
from registry.engine_options.sampling_defaults import SAMPLING_DEFAULTS
from registry.manifests.config_check import check_folder_configs
from registry.manifests.manifest import InvalidManifestError, Manifest
from registry.manifests.model_folder import scan_folder

OPTIONS_BYTES_MAX: Final = 1024 * 1024
_GENERATION_FILE: Final = "generation_config.json"
_GENERATION_BYTES_MAX: Final = 1024 * 1024


def describe_folder(
    folder: Path,
    *,
    source: str | None = None,
    base: str | None = None,
    engine_options: Mapping[str, Any] | None = None,
    allows_code: bool = False,
) -> Manifest:
    """Return the manifest of a folder; every file is read once to hash it.

    `base` is the version of an adapter's base model. Raises InvalidManifestError,
    InvalidOptionError, OSError.
    """
    files = scan_folder(folder, allows_code=allows_code)
    check_folder_configs(folder, [file.path for file in files])
    return Manifest(
        files,
        base=base,
        source=source,
        engine_options=dict(engine_options or {}),
        sampling=read_sampling(folder),
        # Only a folder with code needs the permission, and its version then tells of it.
        allows_code=allows_code and any(file.path.endswith(".py") for file in files),
    )


def read_sampling(folder: Path) -> dict[str, Any]:
    """Return the defaults of sampling parameters that the model's authors recommend.

    They are checked with the manifest. Raises InvalidManifestError for a file that is no JSON
    object.
    """
    path = folder / _GENERATION_FILE
    if not path.is_file():
        return {}
    if path.stat().st_size > _GENERATION_BYTES_MAX:
        raise InvalidManifestError(f"{_GENERATION_FILE} is larger than 1 MiB.")
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidManifestError(f"{_GENERATION_FILE} is not a JSON object.") from None
    return {
        name: int(value)
        if kind is int and isinstance(value, float) and value.is_integer()
        else value
        for name, kind in SAMPLING_DEFAULTS.items()
        if not isinstance(value := found.get(name), bool | NoneType)
    }


def read_options(path: Path) -> dict[str, Any]:
    """Return the engine options in a file, TOML if it is named `.toml` and JSON otherwise.

    Raises InvalidOptionError, OSError. The options themselves are checked with the manifest.
    """
    data = path.read_bytes()
    if len(data) > OPTIONS_BYTES_MAX:
        raise InvalidOptionError(f"{path} is larger than 1 MiB.")
    try:
        if path.suffix.lower() == ".toml":
            return tomllib.loads(data.decode())
        return msgspec.json.decode(data, type=dict[str, Any])
    except (ValueError, RecursionError):  # also the errors of both decoders
        raise InvalidOptionError(f"{path} has no table of options in TOML or JSON.") from None
