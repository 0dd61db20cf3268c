"""Writes the bill of materials of a model version in the form of CycloneDX 1.6."""

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Final
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec

from registry.manifests.manifest import Manifest

if TYPE_CHECKING:
    from cyclonedx.model import HashType
    from cyclonedx.model.component import Component

_PREFIX: Final = "millrace:"


def bill_of_materials(
    name: str, version: str, manifest: Manifest, *, created_at: datetime | None = None
) -> str:
    """Return JSON with the model as a component, its files with their digests, base and source.

    The same version gives the same text: serial number and time are those of the version.
    """
    from cyclonedx.model import ExternalReference, ExternalReferenceType, Property, XsUri
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6

    model = Component(
        name=name,
        version=version,
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref=f"model:{version}",
        hashes=[_sha256(version)],  # of the manifest
        properties=[Property(name=name, value=value) for name, value in _facts(manifest)],
    )
    if manifest.source is not None:
        reference = ExternalReference(
            type=ExternalReferenceType.DISTRIBUTION, url=XsUri(manifest.source)
        )
        model.external_references.add(reference)
    model.components.update(_file_component(file.path, file.sha256) for file in manifest.files)
    bom = Bom(serial_number=_serial_number(version))
    bom.metadata.component = model
    if created_at is not None:
        bom.metadata.timestamp = created_at
    if manifest.base is not None:
        base = Component(
            name="base model",
            version=manifest.base,
            type=ComponentType.MACHINE_LEARNING_MODEL,
            bom_ref=f"model:{manifest.base}",
            hashes=[_sha256(manifest.base)],
        )
        bom.components.add(base)
        bom.register_dependency(model, [base])
    return JsonV1Dot6(bom).output_as_string(indent=2)


def _facts(manifest: Manifest) -> Iterator[tuple[str, str]]:
    yield f"{_PREFIX}total_bytes", str(manifest.total_bytes)
    yield f"{_PREFIX}allows_code", str(manifest.allows_code).lower()
    if manifest.safety_policy is not None:
        yield f"{_PREFIX}safety_policy", manifest.safety_policy
    for kind, values in (
        ("engine_option", manifest.engine_options),
        ("sampling", manifest.sampling),
    ):
        for key in sorted(values):
            yield f"{_PREFIX}{kind}:{key}", msgspec.json.encode(values[key]).decode()


def _file_component(path: str, digest: str) -> "Component":
    from cyclonedx.model.component import Component, ComponentType

    return Component(
        name=path,
        type=ComponentType.FILE,
        bom_ref=f"file:{path}",
        hashes=[_sha256(digest)],
    )


def _sha256(digest: str) -> "HashType":
    from cyclonedx.model import HashAlgorithm, HashType

    return HashType(alg=HashAlgorithm.SHA_256, content=digest)


def _serial_number(version: str) -> UUID:
    return uuid5(NAMESPACE_URL, f"urn:millrace:model:{version}")
