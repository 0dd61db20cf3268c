"""Checks that the configuration files of a model name no code, model or file outside of it.

vLLM and transformers open what these files name: another model whose weights are loaded instead,
a vocabulary by an absolute path, code of another repository. Nothing of this is part of the
version, so its digest and its signature would not cover what runs.
"""

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from registry.manifests.manifest import InvalidManifestError
from registry.manifests.model_folder import open_regular

CONFIG_BYTES_MAX: Final = 16 * 1024 * 1024

_KEY_CHARS_MAX: Final = 200

_CONFIG_NAMES: Final = frozenset(
    {"special_tokens_map.json", "modules.json", "params.json", "chat_template.json"}
)
"""Configurations without `config` in their names; readers merge the first into the tokenizer's."""

_IGNORED: Final = frozenset(
    {
        "_name_or_path",
        "base_model_name_or_path",
        "model_name_or_path",
        "name_or_path",
        "special_tokens_map_file",
    }
)
"""Where the author had the files; readers replace or ignore it."""

_MODELS: Final = ("_model_id", "_name_or_path")
"""Endings of keys that name another model, such as Ultravox's `audio_model_id`."""

_FILES: Final = ("_file", "_files", "_path", "_paths", "_dir", "_folder")
"""Endings of keys that name files, also those of a quantization."""

_FILE_KEYS: Final = frozenset(
    {"vocab", "merges", "rcfile", "source_spm", "target_spm", "mecab_option"}
)
"""Other such keys of tokenizers."""

_VOCABULARIES: Final = frozenset({"vocab", "merges"})
"""Keys that name a file, or hold its content."""

_TEXTS: Final = frozenset(
    {
        "added_tokens_decoder",
        "additional_special_tokens",
        "chat_template",
        "extra_special_tokens",
        "id2label",
        "label2id",
        "model_specific_special_tokens",
        "prompts",
    }
)
"""Keys whose values are texts for users or tokens, which may look like paths."""


def check_folder_configs(folder: Path, paths: Collection[str]) -> None:
    """Check the configurations of a model's folder. Raises InvalidManifestError, OSError."""

    def read(path: str) -> bytes:
        with os.fdopen(open_regular(folder, path), "rb") as file:
            return file.read(CONFIG_BYTES_MAX + 1)

    check_configs(paths, read)


def check_configs(paths: Collection[str], read: Callable[[str], bytes]) -> None:
    """Raise InvalidManifestError for the first configuration that names what is not in the model.

    `paths` are all files of the model; `read` returns the content of one, which may be cut after
    `CONFIG_BYTES_MAX` + 1 bytes.
    """
    for path in sorted(filter(_is_config, paths)):
        if reason := config_refusal(read(path), paths):
            raise InvalidManifestError(f"{path!r} may not be part of a model: {reason}.")


def config_refusal(data: bytes, paths: Collection[str]) -> str | None:
    """Return why a configuration may not be part of a model of these files, or None if it may."""
    if len(data) > CONFIG_BYTES_MAX:
        return f"it has more than {CONFIG_BYTES_MAX} bytes"
    try:  # with the decoder of the readers: others differ in numbers and repeated keys
        config = json.loads(data.decode())
    except (ValueError, RecursionError):
        return "it is not valid JSON"
    try:
        return next(_refusals(config, paths), None)
    except RecursionError:
        return "it is nested too deep"


def _is_config(path: str) -> bool:
    name = PurePosixPath(path).name.lower()
    return name.endswith(".json") and ("config" in name or name in _CONFIG_NAMES)


def _refusals(value: Any, paths: Collection[str], key: str = "") -> Iterator[str]:
    """Yield what a value names that is not in the model; `key` is the nearest key above it."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _key_refusals(name, inner, paths)
    elif isinstance(value, list):
        for inner in value:
            yield from _refusals(inner, paths, key)
    elif isinstance(value, str) and _leaves_folder(value):
        yield f"`{_shown(key)}` names a path outside of it"


def _key_refusals(key: str, value: Any, paths: Collection[str]) -> Iterator[str]:
    if key in _IGNORED or key in _TEXTS or key.endswith(("_token", "_tokens")):
        return
    if key in _VOCABULARIES and not isinstance(value, str):
        return
    if _is_model(key, value):
        yield f"`{_shown(key)}` names another model"
    if key == "auto_map" and any("--" in name or "/" in name for name in _texts(value)):
        yield f"`{_shown(key)}` names code of another repository"
    names_file = key.endswith(_FILES) or key in _FILE_KEYS
    if names_file and not all(_is_listed(name, paths) for name in _texts(value) if name):
        yield f"`{_shown(key)}` names a file that is not in it"
    yield from _refusals(value, paths, key)


def _is_model(key: str, value: Any) -> bool:
    if key == "speculators_config":  # vLLM loads its verifier as the model
        verifier = value.get("verifier") if isinstance(value, Mapping) else None
        return isinstance(verifier, Mapping) and verifier.get("name_or_path") is not None
    if key == "use_pretrained_backbone":
        return bool(value)
    return key.endswith(_MODELS) and value is not None


def _is_listed(name: str, paths: Collection[str]) -> bool:
    """Whether it is a file or a folder of the model."""
    return name in paths or any(path.startswith(f"{name}/") for path in paths)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(inner)


def _leaves_folder(text: str) -> bool:
    """Whether a text is an absolute path or one with `..`; a text with spaces is none."""
    if len(text) < 2 or any(character.isspace() for character in text):
        return False
    return text.startswith(("/", "~/", "file:")) or ".." in text.split("/")


def _shown(key: str) -> str:
    return key[:_KEY_CHARS_MAX]
