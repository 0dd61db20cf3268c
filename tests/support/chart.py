"""The Helm chart, its examples and their renderings."""

import copy
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import yaml  # type: ignore[import-untyped]

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "deploy/helm/millrace"
EXAMPLES: Final = ROOT / "deploy/helm/examples"
SCHEMAS: Final = ROOT / "deploy/helm/schemas"
GOLDEN: Final = ROOT / "tests/golden/chart"
DIGEST: Final = GOLDEN / "sources.sha256"

RENDERINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "minimal": ("minimal.yaml",),
    "spot": ("spot.yaml",),
    "keda": ("spot.yaml", "keda.yaml"),
    "kueue": ("spot.yaml", "kueue.yaml"),
    "warm": ("spot.yaml", "warm.yaml"),
    "region_eu": ("spot.yaml", "region_eu.yaml"),
    "region_us": ("spot.yaml", "region_us.yaml"),
}
"""The values files of each rendering, in the order of `helm template --values`."""

BESIDE_SPOT: Final = frozenset({"keda", "kueue", "warm"})
"""Renderings of which only what differs from `spot` is kept. They only add and change objects."""

APPLIED_APART: Final = ("karpenter_nodepools.yaml", "kueue_queues.yaml")
"""Examples that are objects and no values."""

_SHARED_MIN: Final = 60
"""Characters from which an alias is shorter than what it stands for."""

VERSIONS: Final = ("1.33", "1.34", "1.35", "1.36", "1.37")
"""The versions of Kubernetes that the chart is validated against."""


def values(name: str) -> dict[str, Any]:
    """Return a values file."""
    found: dict[str, Any] = yaml.safe_load((EXAMPLES / name).read_text())
    return found


def spot_policies(old: str, new: str) -> dict[str, Any]:
    """Return values with the scaling policies of `spot.yaml`, one text of them replaced."""
    kept: str = values("spot.yaml")["autoscaler"]["policies"]
    if old not in kept:
        raise ValueError(old)
    return {"autoscaler": {"policies": kept.replace(old, new, 1)}}


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as Helm merges them: maps by key, all else is replaced."""
    found = copy.deepcopy(dict(base))
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(found.get(key), Mapping):
            found[key] = merged(found[key], value)
        else:
            found[key] = copy.deepcopy(value)
    return found


def all_values(*overs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chart's values with these merged over them."""
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    for over in overs:
        found = merged(found, over)
    return found


def objects(text: str) -> list[dict[str, Any]]:
    """Return the objects of a rendering."""
    return [found for found in yaml.safe_load_all(text) if found]


def normalised(rendered: Iterable[dict[str, Any]]) -> str:
    """Return objects as one list in the order of kinds and names, equal parts written once."""
    found = sorted(rendered, key=key_of)
    written: str = yaml.safe_dump(_shared(found, {}), default_flow_style=None, width=150)
    return written


def _shared(part: Any, seen: dict[str, Any]) -> Any:
    """Replace equal lists and maps by one object, which YAML then writes as an alias."""
    if isinstance(part, dict):
        part = {key: _shared(value, seen) for key, value in part.items()}
    elif isinstance(part, list):
        part = [_shared(value, seen) for value in part]
    else:
        return part
    text = json.dumps(part, sort_keys=True)
    return seen.setdefault(text, part) if len(text) > _SHARED_MIN else part


def kept_text(name: str, text: str) -> str:
    """Return what is kept of a rendering: all, or what differs from the one that it is beside."""
    if name not in BESIDE_SPOT:
        return normalised(objects(text))
    base = {key_of(one): one for one in golden("spot")}
    return normalised([one for one in objects(text) if base.get(key_of(one)) != one])


@cache
def _kept(name: str) -> list[dict[str, Any]]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: list[dict[str, Any]] = yaml.load((GOLDEN / f"{name}.yaml").read_text(), loader)
    return found


def golden(name: str) -> list[dict[str, Any]]:
    """Return the objects of a rendering that is kept in the repository. They are shared."""
    found = {key_of(one): one for one in _kept("spot")} if name in BESIDE_SPOT else {}
    found.update({key_of(one): one for one in _kept(name)})
    return list(found.values())


def key_of(one: Mapping[str, Any]) -> tuple[str, str]:
    """Return kind and name."""
    return one["kind"], one["metadata"]["name"]


def sources_digest() -> str:
    """Return a digest of all that a rendering is made of."""
    seen = hashlib.sha256()
    for path in sorted([*CHART.rglob("*"), *EXAMPLES.glob("*.yaml")]):
        if path.is_file():
            seen.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return seen.hexdigest()


def custom_schema(one: Mapping[str, Any]) -> Path:
    """Return the file of the schema of a custom resource. It may not exist."""
    group, _, version = one["apiVersion"].rpartition("/")
    return SCHEMAS / f"{one['kind'].lower()}-{group.partition('.')[0]}-{version}.json"


def schema_folder(version: str) -> Path:
    """Return the folder with the strict schemas of a version of Kubernetes."""
    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    return folder / f"v{version}.0-local-strict"


def containers(one: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the containers of a Deployment or Job, those of its start first."""
    spec = one["spec"]["template"]["spec"]
    yield from spec.get("initContainers", [])
    yield from spec["containers"]
