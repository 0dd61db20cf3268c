"""Builders of signed model versions, without files in a store."""

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from registry.manifests.manifest import Manifest, ManifestFile, encode_manifest, version_of
from registry.model_version import ModelVersion
from registry.signing.keys import SigningKey
from registry.signing.model_signature import sign_files
from registry.store.keys import trust_key
from registry.store.registration import register_signed_version

EMBEDDINGS = ("/v1/embeddings",)


def manifest_of(content: str = "weights", **fields: Any) -> Manifest:
    """Return the manifest of a model of one file."""
    data = content.encode()
    file = ManifestFile("model.safetensors", len(data), sha256(data).hexdigest())
    return Manifest((file,), **fields)


@dataclass
class ModelSigner:
    """A key, and what it signs."""

    key: SigningKey = field(default_factory=SigningKey.generate)

    @property
    def key_id(self) -> str:
        return self.key.public.key_id

    def trust(self, connection: sa.Connection, name: str = "release") -> None:
        """Let the registry accept this key."""
        trust_key(connection, self.key.public.pem, name)

    def sign(self, manifest: Manifest) -> tuple[bytes, bytes]:
        """Return the bytes of a manifest, and a bundle."""
        data = encode_manifest(manifest)
        return data, sign_files(self.key, version_of(data), manifest.files)

    def version(self, manifest: Manifest) -> str:
        """Return the version that a manifest is."""
        return version_of(encode_manifest(manifest))

    def register(
        self,
        connection: sa.Connection,
        name: str,
        content: str = "weights",
        *,
        base: str | None = None,
        pool: str | None = "p",
        tenant_id: UUID | None = None,
        endpoints: tuple[str, ...] = EMBEDDINGS,
    ) -> ModelVersion:
        """Register a model of one file."""
        manifest_bytes, bundle = self.sign(manifest_of(content, base=base))
        return register_signed_version(
            connection,
            name=name,
            manifest_bytes=manifest_bytes,
            bundle=bundle,
            key_id=self.key_id,
            pool=pool,
            endpoints=endpoints,
            tenant_id=tenant_id,
        )
