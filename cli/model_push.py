"""Fetches a model, publishes it to the object store and says how it is registered."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import SettingsError
from gpu_consumers.engines.model_kind import endpoints_of_folder
from registry.adapters.adapter_check import CONFIG_NAME
from registry.adapters.adapter_files import AdapterBase, check_adapter_files, folder_reader
from registry.manifests.manifest import Manifest
from registry.publishing.folder_manifest import describe_folder
from registry.publishing.published_version import (
    PublishedSignature,
    PublishedVersion,
    publish_version,
)
from registry.sources.fetched_model import Fetcher
from registry.sources.source_names import Source
from storage.objects.object_store import ObjectStore

Approve = Callable[[Manifest], Sequence[PublishedSignature]]
"""Returns the signatures of a manifest, or raises if the operator does not want it published."""


@dataclass(frozen=True, slots=True)
class PushedModel:
    """A model whose objects are all stored."""

    published: PublishedVersion
    endpoints: tuple[str, ...]  # by its files; none for an adapter, which has those of its base
    left_out: Sequence[str]  # files of the source that are not part of it


def push_model(  # noqa: PLR0913  one parameter a choice of the operator
    source: Source,
    *,
    fetcher: Fetcher,
    objects: ObjectStore,
    approve: Approve,
    engine_options: Mapping[str, Any] | None = None,
    base: AdapterBase | None = None,
    replaces: bool = False,
) -> PushedModel:
    """Store files, manifest and signatures of a model; registering it is for the caller.

    An adapter must fit its `base`. With `replaces`, stored files that were altered are replaced.
    Raises ModelSourceError, SettingsError,
    InvalidManifestError, InvalidOptionError, InvalidAdapterError, InvalidSignatureError, and errors
    of the store.
    """
    with fetcher.fetched(source) as model:
        _require_adapter(model.folder, is_adapter=base is not None)
        if base is not None:
            check_adapter_files(folder_reader(model.folder), base, objects)
        manifest = describe_folder(
            model.folder,
            source=model.source,
            base=None if base is None else base.version,
            engine_options=engine_options,
            allows_code=fetcher.allows_code,
        )
        endpoints = () if base is not None else endpoints_of_folder(model.folder)
        signatures = approve(manifest)
        published = publish_version(
            objects, model.folder, manifest, signatures, fetcher.report, replaces=replaces
        )
        return PushedModel(published, endpoints, model.left_out)


def _require_adapter(folder: Path, *, is_adapter: bool) -> None:
    if is_adapter == (folder / CONFIG_NAME).is_file():
        return
    if is_adapter:
        raise SettingsError(f"--base is for adapters, and the model has no {CONFIG_NAME}.")
    raise SettingsError(f"The model has {CONFIG_NAME}, so it is an adapter: give --base.")
