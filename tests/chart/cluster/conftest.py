"""One control plane for all tests of this folder, with nodes and the CRDs of the examples."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chart.cluster.control_plane import ControlPlane, control_plane
from tests.chart.cluster.custom_resources import crds, install_crds
from tests.chart.cluster.nodes import fleet, running_nodes
from tests.chart.cluster.releases import Release, release


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with nodes in three zones of a region."""
    with control_plane(tmp_path_factory.mktemp("cluster")) as found:
        install_crds(found.api, crds())
        with running_nodes(found.api, fleet()):
            yield found


@pytest.fixture
def chart(plane: ControlPlane, tmp_path: Path) -> Iterator[Release]:
    """A release in a new namespace."""
    with release(plane, tmp_path) as found:
        yield found
