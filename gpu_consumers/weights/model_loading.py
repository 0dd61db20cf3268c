"""Verifies a model version and stages its files: what a replica does before it loads a model.

    1. the registry names the version under the model's name, and has not retired it
    2. manifest: its digest is the version
    3. signature: by a trusted key that is not revoked, for this version and these files
    4. weight cache: exactly the listed files, each hashed through the folder that is loaded
    5. configurations: none names code, a model or a file outside of the version
    6. memory plan, from the verified files: the model fits the device
    7. the registry once more: nothing was retired or revoked meanwhile

Any failure raises ModelRefusedError, and the files are not loaded.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Final, Protocol, Self, TypeAlias

from gpu_consumers.weights.cache_locks import Wait
from gpu_consumers.weights.errors import ModelRefusedError, RefusalReason
from gpu_consumers.weights.weight_cache import StagedVersion, WeightCache
from registry.engine_options.engine_options import InvalidOptionError
from registry.manifests.config_check import check_folder_configs
from registry.manifests.manifest import (
    MANIFEST_BYTES_MAX,
    InvalidManifestError,
    Manifest,
    decode_manifest,
)
from registry.manifests.model_objects import manifest_key, signature_key, signature_prefix
from registry.signing.keys import PublicKey
from registry.signing.model_signature import (
    BUNDLE_BYTES_MAX,
    InvalidSignatureError,
    verify_version,
)
from storage.objects.errors import ObjectNotFoundError
from storage.objects.object_store import ObjectStore, read_object

_SIGNERS_MAX: Final = 1000
"""Signatures that a refusal looks at."""

MemoryCheck: TypeAlias = Callable[[Manifest, Path], int | None]
"""Plans the memory of the model in a folder. Returns the bytes of its KV cache; None if the engine
measures them. Raises ModelRefusedError for a model that does not fit."""


def fits_always(_manifest: Manifest, _folder: Path) -> int | None:
    """Return None: the memory check of a replica without a memory plan."""
    return None


class RegistryView(Protocol):
    """What the registry says of the versions that may be loaded, and of keys."""

    def require_loadable(self, version: str) -> None:
        """Raise ModelRefusedError if the version is unknown or retired, as of now."""
        ...

    def revoked_keys(self) -> frozenset[str]:
        """Return the ids of all revoked keys, as of the last `require_loadable`."""
        ...


@dataclass(frozen=True, slots=True)
class StagedModel:
    """A verified model. Its folder has exactly the listed files and stays until `release`."""

    version: str
    manifest: Manifest
    staged: StagedVersion
    signed_by: str  # id of the trusted key whose signature counted
    kv_cache_memory_bytes: int | None = None  # of the memory plan; None: the engine measures

    @property
    def folder(self) -> Path:
        """The folder to load."""
        return self.staged.folder

    def release(self) -> None:
        """Allow that the files are evicted; a second call does nothing."""
        self.staged.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass(frozen=True, slots=True)
class ModelLoader:
    """Verifies and stages versions with the dependencies of one replica."""

    objects: ObjectStore
    cache: WeightCache
    registry: RegistryView
    trusted: Mapping[str, PublicKey]
    wait: Wait
    check_memory: MemoryCheck = fits_always
    base: str | None = None  # the version that the manifest must name: of adapters

    def stage(self, version: str) -> StagedModel:
        """Return a verified version whose files are on local disk.

        Raises ModelRefusedError, ObjectStoreUnavailableError, KafkaUnavailableError and
        StagingStoppedError.
        """
        self.registry.require_loadable(version)
        manifest = self._read_manifest(version)
        signed_by = self._verify_signature(version, manifest)
        self._require_base(version, manifest)
        staged = self.cache.stage(version, manifest.files, self.objects)
        try:
            _check_configs(version, manifest, staged.folder)
            kv_cache_bytes = self.check_memory(manifest, staged.folder)
            self.registry.require_loadable(version)
            if signed_by in self.registry.revoked_keys():
                raise _revoked(version, signed_by)
        except BaseException:
            staged.release()
            raise
        return StagedModel(version, manifest, staged, signed_by, kv_cache_bytes)

    def _read_manifest(self, version: str) -> Manifest:
        try:
            data = self._read_bounded(manifest_key(version), MANIFEST_BYTES_MAX)
        except ObjectNotFoundError:
            text = f"The manifest of version {version} is not in the object store."
            raise ModelRefusedError(RefusalReason.MANIFEST, text) from None
        digest = sha256(data).hexdigest()
        if digest != version:
            text = f"The manifest of version {version} was altered: its digest is {digest}."
            raise ModelRefusedError(RefusalReason.MANIFEST, text)
        try:
            return decode_manifest(data)
        except (InvalidManifestError, InvalidOptionError) as failure:
            text = f"The manifest of version {version}: {failure}"
            raise ModelRefusedError(RefusalReason.MANIFEST, text) from None

    def _verify_signature(self, version: str, manifest: Manifest) -> str:
        """Return the id of a trusted key, not revoked, that has signed the version."""
        failure: ModelRefusedError | None = None
        revoked = self.registry.revoked_keys()
        for key_id in sorted(self.trusted.keys() - revoked):
            try:
                bundle = self._read_bounded(signature_key(version, key_id), BUNDLE_BYTES_MAX)
            except ObjectNotFoundError:
                continue
            try:
                trusted = {key_id: self.trusted[key_id]}
                verify_version(bundle, trusted, version=version, files=manifest.files)
            except InvalidSignatureError as refused:
                text = f"The signature of version {version} by key {key_id}: {refused}"
                failure = ModelRefusedError(RefusalReason.SIGNATURE, text)
                continue
            return key_id
        raise failure or self._missing_signature(version, revoked)

    def _missing_signature(self, version: str, revoked: frozenset[str]) -> ModelRefusedError:
        """Return the refusal of a version without a signature that counts; it says which are."""
        prefix = signature_prefix(version)
        signers = {
            info.key.removeprefix(prefix)
            for info in islice(self.objects.list(prefix), _SIGNERS_MAX)
        }
        if not signers:
            return ModelRefusedError(RefusalReason.UNSIGNED, f"Version {version} is not signed.")
        if counted := sorted(signers & self.trusted.keys() & revoked):
            return _revoked(version, counted[0])
        text = f"Version {version} is signed by keys that this replica does not trust: "
        return ModelRefusedError(RefusalReason.UNTRUSTED_KEY, text + ", ".join(sorted(signers)[:3]))

    def _read_bounded(self, key: str, bytes_max: int) -> bytes:
        """Return an object, cut after one byte too many, which its check refuses."""
        return read_object(self.objects, key, length=bytes_max + 1)

    def _require_base(self, version: str, manifest: Manifest) -> None:
        """Require that an adapter is of the loaded model, and that a model is no adapter."""
        if manifest.base != self.base:
            base = f"an adapter of version {manifest.base}" if manifest.base else "no adapter"
            needed = f"adapters of version {self.base}" if self.base else "models"
            text = f"Version {version} is {base}; this replica loads {needed} here."
            raise ModelRefusedError(RefusalReason.MANIFEST, text)


def _check_configs(version: str, manifest: Manifest, folder: Path) -> None:
    try:
        check_folder_configs(folder, [file.path for file in manifest.files])
    except InvalidManifestError as failure:
        text = f"Version {version}: {failure}"
        raise ModelRefusedError(RefusalReason.CONFIG, text) from None


def _revoked(version: str, key_id: str) -> ModelRefusedError:
    text = f"Version {version} is signed by the revoked key {key_id}."
    return ModelRefusedError(RefusalReason.REVOKED_KEY, text)
