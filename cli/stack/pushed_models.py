"""Pushes the models of an embedded stack to its object store, signed by a key of its own.

A model that was pushed from the same source with the same options is not pushed again, so that a
later start reads a few objects instead of all weights. A folder counts as the same while no file of
it changes; a repository of the hub and a bucket are read once, so a start neither needs them nor
changes the model.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from cli.model_push import push_model
from cli.stack.data_folder import (
    PUSHED_MODELS_FILE,
    SIGNING_KEY_FILE,
    TRUSTED_KEYS_FILE,
    write_private,
)
from cli.stack.model_requests import ModelRequest
from cli.stack.processes.role_children import object_store_env
from cli.stack.served_models import ServedModel, SignedObjects
from core.errors import SettingsError
from registry.engine_options.engine_options import check_options
from registry.manifests.manifest import decode_manifest
from registry.manifests.model_objects import manifest_key, signature_key
from registry.publishing.file_uploads import missing_files
from registry.publishing.folder_manifest import read_options
from registry.publishing.published_version import sign_version
from registry.signing.keys import InvalidKeyError, SigningKey
from registry.sources.fetched_model import Fetcher
from registry.sources.source_names import FolderSource
from registry.transfers import Report
from storage.objects.errors import ObjectNotFoundError
from storage.objects.object_store import ObjectStore, read_object
from storage.objects.open_store import object_store_from_env

_ENGINE: Final = "vllm"


class _PushedModel(msgspec.Struct, frozen=True):
    version: str
    endpoints: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPushes:
    """The models of the stack on one data folder, which the caller has locked."""

    data: Path
    env: Mapping[str, str]
    report: Report

    def push(self, request: ModelRequest) -> ServedModel:
        """Store a model and its signature; return how it is served.

        Raises the errors of `push_model`, and SettingsError for a key file that holds none.
        """
        objects = object_store_from_env({**self.env, **object_store_env(self.data, self.env)})
        key = signing_key(self.data)
        options = {} if request.options_file is None else read_options(request.options_file)
        check_options(options)
        mark = _mark(request, options)
        known = self._known()
        if (found := known.get(mark)) is not None:
            served = _served(request.name, found, objects, key)
            if served is not None:
                return served
        pushed = push_model(
            request.source,
            fetcher=Fetcher(downloads=self.data / "downloads", env=self.env, report=self.report),
            objects=objects,
            approve=lambda manifest: [sign_version(key, manifest)],
            engine_options=options,
        )
        found = _PushedModel(pushed.published.version, list(pushed.endpoints))
        write_private(
            self.data / PUSHED_MODELS_FILE, msgspec.json.encode({**self._known(), mark: found})
        )
        served = _served(request.name, found, objects, key)
        assert served is not None  # it was stored a moment ago
        return served

    def _known(self) -> dict[str, _PushedModel]:
        try:
            data = (self.data / PUSHED_MODELS_FILE).read_bytes()
            return msgspec.json.decode(data, type=dict[str, _PushedModel])
        except (FileNotFoundError, msgspec.MsgspecError):
            return {}


def signing_key(data: Path) -> SigningKey:
    """Return the signing key of a data folder, created with mode 0600 if it is missing.

    Its public half is written where the replicas read the keys that they trust; keys that were
    added there by hand stay. Raises SettingsError.
    """
    path, trusted = data / SIGNING_KEY_FILE, data / TRUSTED_KEYS_FILE
    if not path.exists():
        write_private(path, SigningKey.generate().pem())
    path.chmod(0o600)
    try:
        key = SigningKey.from_pem(path.read_bytes())
    except InvalidKeyError:
        raise SettingsError(f"{path} holds no signing key: remove it, and start again.") from None
    others = trusted.read_bytes() if trusted.exists() else b""
    if key.public.pem not in others:
        write_private(trusted, key.public.pem + others)
    return key


def _served(
    name: str, pushed: _PushedModel, objects: ObjectStore, key: SigningKey
) -> ServedModel | None:
    """Return a model whose objects are all there, else None."""
    key_id = key.public.key_id
    try:
        manifest = read_object(objects, manifest_key(pushed.version))
        bundle = read_object(objects, signature_key(pushed.version, key_id))
    except ObjectNotFoundError:
        return None
    if missing_files(objects, decode_manifest(manifest)):
        return None
    return ServedModel(
        name=name,
        version=pushed.version,
        engine=_ENGINE,
        endpoints=tuple(pushed.endpoints),
        signed=SignedObjects(manifest=manifest, bundle=bundle, key_pem=key.public.pem),
    )


def _mark(request: ModelRequest, options: Mapping[str, Any]) -> str:
    """Return a digest of all that determines the version, without reading the weights."""
    source = request.source
    files = _listing(source.folder) if isinstance(source, FolderSource) else str(source)
    known = msgspec.json.Encoder(order="deterministic").encode([files, options])
    return hashlib.sha256(known).hexdigest()


def _listing(folder: Path) -> list[tuple[str, int, int, int, int]]:
    """Return path, size, times of change and inode of each file: one differs after any edit."""
    found = []
    for parent, _, names in os.walk(folder):
        for name in names:
            seen = (path := Path(parent) / name).lstat()
            times = (seen.st_mtime_ns, seen.st_ctime_ns)
            found.append((str(path.relative_to(folder)), seen.st_size, *times, seen.st_ino))
    return sorted(found)
