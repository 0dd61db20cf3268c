"""Parses the models that an embedded stack is asked to serve with vLLM."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from core.errors import SettingsError
from registry.sources.source_names import FolderSource, HubSource, Source, parse_source


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A model to push and to serve."""

    name: str
    source: Source
    options_file: Path | None = None  # engine options of the version


def model_requests(models: Sequence[str], options: Sequence[str] = ()) -> tuple[ModelRequest, ...]:
    """Parse every `--model` and every `--options NAME=FILE`.

    A model is NAME=SOURCE, or ORG/NAME alone, which is a repository of the hub and the name.
    Raises SettingsError, ModelSourceError.
    """
    files = dict(_options_file(text) for text in options)
    requests = tuple(_model_request(text, files) for text in models)
    names = [request.name for request in requests]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"--model {name}: each name may be given once")
    if unknown := sorted(files.keys() - set(names)):
        raise SettingsError(f"--options {unknown[0]}: no --model has this name")
    return requests


def _model_request(text: str, files: dict[str, Path]) -> ModelRequest:
    name, equals, source_text = text.partition("=")
    if not name:
        raise SettingsError("--model needs a name: NAME=PATH")
    if not equals:
        source = parse_source(name)
        if not isinstance(source, HubSource):
            raise SettingsError(
                f"--model {name}: the vllm engine needs NAME=PATH, NAME=s3://…, NAME=hf://… "
                "or ORG/NAME of the hub"
            )
        name = source.repository
    elif not source_text:
        raise SettingsError(f"--model {name}: the vllm engine needs NAME=PATH")
    else:
        source = parse_source(source_text)
    if isinstance(source, FolderSource) and not (source.folder / "config.json").is_file():
        raise SettingsError(f"--model {name}: {source.folder} has no config.json")
    return ModelRequest(name, source, files.get(name))


def _options_file(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not equals or not name or not path:
        raise SettingsError(f"--options {text}: give NAME=FILE")
    return name, Path(path).expanduser().absolute()
