"""Derives `deploy/helm/schemas/*.json` from the CRDs of Go modules: `make chart-schemas`.

Each module has a version and the checksum of Go (`h1:`, as in a go.sum). The schemas are kept in
the repository, so that a validation needs neither the modules nor a network. They are strict: a
field that a CRD does not name is refused. Descriptions are left out.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml  # type: ignore[import-untyped]

ROOT: Final = Path(__file__).parents[2]
SCHEMAS: Final = ROOT / "deploy/helm/schemas"
GENERATOR: Final = SCHEMAS / "generator"


class Source(NamedTuple):
    """CRDs of one Go module."""

    module: str
    checksum: str  # of the module's zip
    folder: str
    files: tuple[str, ...]


SOURCES: Final = (
    Source(
        "github.com/kedacore/keda/v2@v2.21.0",
        "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps=",
        "config/crd/bases",
        ("keda.sh_scaledobjects.yaml",),
    ),
    Source(
        "sigs.k8s.io/kueue@v0.17.0",
        "h1:7hzb38M4eKGzYW+CFv2s1L+swzzacUCHOCXxZmAV90I=",
        "config/components/crd/bases",
        (
            "kueue.x-k8s.io_clusterqueues.yaml",
            "kueue.x-k8s.io_localqueues.yaml",
            "kueue.x-k8s.io_resourceflavors.yaml",
        ),
    ),
    Source(
        "sigs.k8s.io/karpenter@v1.14.0",
        "h1:+SXlqYNb9FIKRpDgPPRnphVmWbrWLw4tgzKezr372Mc=",
        "pkg/apis/crds",
        ("karpenter.sh_nodepools.yaml",),
    ),
)
MONITORING: Final = "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
"""Its CRDs are in no module: controller-gen makes them from its types, as the project does."""

MONITORING_FILES: Final = (
    "monitoring.coreos.com_podmonitors.yaml",
    "monitoring.coreos.com_prometheusrules.yaml",
)


def strict(schema: Any) -> Any:
    """Return a schema of OpenAPI as strict JSON schema."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        name: {key: strict(part) for key, part in value.items()}
        if name == "properties"
        else (value if name in {"enum", "default"} else strict(value))
        for name, value in schema.items()
        if name not in {"description", "default", "nullable", "format", "example"}
        and not name.startswith("x-")
    }
    if schema.get("x-kubernetes-int-or-string"):
        kept.pop("type", None)
        kept.setdefault("anyOf", [{"type": "integer"}, {"type": "string"}])
    if (
        "properties" in schema
        and "additionalProperties" not in schema
        and not schema.get("x-kubernetes-preserve-unknown-fields")
    ):
        kept["additionalProperties"] = False
    if schema.get("nullable") and "type" in kept:
        kept["type"] = [kept["type"], "null"]
    return kept


def schemas_of(crd: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of each version of a CRD, by file name as kubeconform looks it up."""
    spec = crd["spec"]
    kind, group = spec["names"]["kind"].lower(), spec["group"].partition(".")[0]
    found = {}
    for version in spec["versions"]:
        schema = strict(version["schema"]["openAPIV3Schema"])
        schema["properties"]["metadata"] = {"type": "object"}
        full = f"{spec['group']}/{version['name']}"
        schema["properties"]["apiVersion"] = {"const": full}
        schema["properties"]["kind"] = {"const": spec["names"]["kind"]}
        found[f"{kind}-{group}-{version['name']}.json"] = schema
    return found


def module_folder(source: Source) -> Path:
    """Download a module and return its folder. Raises ValueError for another checksum."""
    argv = ["go", "mod", "download", "-json", source.module]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(argv, cwd=folder, capture_output=True, check=True, timeout=600)
    facts = json.loads(done.stdout)
    if facts["Sum"] != source.checksum:
        raise ValueError(f"{source.module} has the checksum {facts['Sum']}")
    return Path(facts["Dir"]) / source.folder


def crd_files(folder: Path) -> list[Path]:
    """Return the CRDs of all sources. Those that are generated are written into the folder."""
    found = [module_folder(source) / name for source in SOURCES for name in source.files]
    argv = ["go", "tool", "controller-gen", "crd:crdVersions=v1", f"paths={MONITORING}"]
    argv.append(f"output:crd:dir={folder}")
    subprocess.run(argv, cwd=GENERATOR, check=True, timeout=1800)
    return found + [folder / name for name in MONITORING_FILES]


def main() -> None:
    """Replace the schemas."""
    for old in SCHEMAS.glob("*.json"):
        old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        for path in crd_files(Path(folder)):
            for name, schema in schemas_of(yaml.safe_load(path.read_text())).items():
                text = json.dumps(schema, separators=(",", ":"), sort_keys=True)
                (SCHEMAS / name).write_text(text + "\n")
                sys.stdout.write(f"{name}: {len(text):,} bytes\n")


if __name__ == "__main__":
    main()
