"""The CRDs that objects of the chart and its examples need."""

import tempfile
from collections.abc import Collection
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tests.chart.cluster.kube_api import CRDS, KubeApi
from tests.chart.crd_schemas import crd_files
from tests.support.until import until


@cache
def crds() -> tuple[dict[str, Any], ...]:
    """Return those of the Go modules that the chart's schemas are derived from, whole."""
    with tempfile.TemporaryDirectory() as folder:
        return tuple(yaml.safe_load(path.read_text()) for path in crd_files(Path(folder)))


def install_crds(api: KubeApi, found: Collection[dict[str, Any]]) -> None:
    """Create CRDs and wait until each version of their resources is served."""
    for crd in found:
        api.create(CRDS, crd)
    for crd in found:
        group, plural = crd["spec"]["group"], crd["spec"]["names"]["plural"]
        for version in crd["spec"]["versions"]:
            until(partial(_is_served, api, f"/apis/{group}/{version['name']}/{plural}"))


def remove_crd(api: KubeApi, name: str) -> None:
    """Delete a CRD with its objects and wait until it is gone."""
    api.call("DELETE", f"{CRDS}/{name}")
    until(lambda: api.find(f"{CRDS}/{name}") is None)


def _is_served(api: KubeApi, path: str) -> bool:
    return api.status("GET", path) == 200
