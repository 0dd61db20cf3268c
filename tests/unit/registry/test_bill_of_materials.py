"""Goal: a bill of materials lists every file of a version, and is valid CycloneDX."""

import json
from datetime import UTC, datetime

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from registry.manifests.manifest import Manifest, ManifestFile
from registry.publishing.bill_of_materials import bill_of_materials

FILES = (
    ManifestFile("adapter_config.json", 3, "a" * 64),
    ManifestFile("adapter_model.safetensors", 5, "b" * 64),
)
VERSION, BASE = "1" * 64, "2" * 64
MANIFEST = Manifest(
    FILES,
    base=BASE,
    source="hf://org/name@" + "c" * 40,
    engine_options={"dtype": "float32"},
    sampling={"temperature": 0.5},
)


def test_files_base_and_source_are_listed() -> None:
    text = bill_of_materials("m", VERSION, MANIFEST, created_at=datetime(2026, 1, 2, tzinfo=UTC))
    found = json.loads(text)

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str('{"bomFormat": 1}') is not None
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    model = found["metadata"]["component"]
    assert (model["type"], model["name"], model["version"]) == (
        "machine-learning-model",
        "m",
        VERSION,
    )
    assert {part["name"]: part["hashes"] for part in model["components"]} == {
        file.path: [{"alg": "SHA-256", "content": file.sha256}] for file in FILES
    }
    assert model["externalReferences"][0]["url"] == MANIFEST.source
    assert {"name": "millrace:engine_option:dtype", "value": '"float32"'} in model["properties"]
    assert found["components"][0]["hashes"][0]["content"] == BASE
    assert {"ref": f"model:{VERSION}", "dependsOn": [f"model:{BASE}"]} in found["dependencies"]
    assert found["metadata"]["timestamp"].startswith("2026-01-02")


def test_the_same_version_gives_the_same_text() -> None:
    created_at = datetime(2026, 1, 2, tzinfo=UTC)
    texts = {bill_of_materials("m", VERSION, MANIFEST, created_at=created_at) for _ in range(2)}
    assert len(texts) == 1
