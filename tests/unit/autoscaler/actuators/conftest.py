from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.actuator_platforms import KubernetesPlatform, kubernetes_platform


@pytest.fixture
async def platform(tmp_path: Path) -> AsyncIterator[KubernetesPlatform]:
    async with kubernetes_platform(tmp_path) as platform:
        yield platform
