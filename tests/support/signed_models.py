"""Signed models in an object store, as `models push` stores them."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from random import Random
from typing import Any

from registry.manifests.manifest import Manifest, ManifestFile, encode_manifest, version_of
from registry.manifests.model_objects import file_key, manifest_key, signature_key
from registry.signing.keys import SigningKey
from registry.signing.model_signature import sign_files
from storage.objects.object_store import ObjectStore, write_object

WEIGHTS = "model-00001-of-00002.safetensors"
TOKENIZER = "tokenizer.json"
TEMPLATE = "chat_template.jinja"


@dataclass(frozen=True)
class StoredModel:
    """A model in an object store."""

    version: str
    manifest: Manifest
    contents: Mapping[str, bytes]


def model_contents(random: Random, *, size: int = 3000) -> dict[str, bytes]:
    """Return files of a small model, of random content."""
    return {
        WEIGHTS: random.randbytes(size),
        "model-00002-of-00002.safetensors": random.randbytes(size // 2),
        "config.json": b'{"architectures":["LlamaForCausalLM"]}',
        TOKENIZER: random.randbytes(200),
        TEMPLATE: random.randbytes(100),
        "sub/special_tokens_map.json": b"{}",
    }


def listed_files(contents: Mapping[str, bytes]) -> tuple[ManifestFile, ...]:
    return tuple(
        ManifestFile(path, len(data), sha256(data).hexdigest())
        for path, data in sorted(contents.items())
    )


def store_files(objects: ObjectStore, contents: Mapping[str, bytes]) -> None:
    for data in contents.values():
        write_object(objects, file_key(sha256(data).hexdigest()), data)


def store_model(
    objects: ObjectStore,
    contents: Mapping[str, bytes],
    *keys: SigningKey,
    engine_options: Mapping[str, Any] | None = None,
    base: str | None = None,
) -> StoredModel:
    """Store files, manifest and the signature of each key; with `base`, of an adapter."""
    options = dict(engine_options or {})
    manifest = Manifest(listed_files(contents), base=base, engine_options=options)
    data = encode_manifest(manifest)
    version = version_of(data)
    store_files(objects, contents)
    write_object(objects, manifest_key(version), data)
    for key in keys:
        store_signature(objects, version, key, sign_files(key, version, manifest.files))
    return StoredModel(version, manifest, contents)


def store_signature(objects: ObjectStore, version: str, key: SigningKey, bundle: bytes) -> None:
    write_object(objects, signature_key(version, key.public.key_id), bundle)
