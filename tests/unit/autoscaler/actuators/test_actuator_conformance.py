"""Goal: every actuator keeps the promises of `tests/support/actuator_conformance.py`.

No cluster is here: Kubernetes is a fake API server with its optimistic concurrency, and KEDA is the
values that it reads. The command and the webhook are what an operator writes.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.actuator_conformance import (
    ActuatorConformance,
    FencedPlatformConformance,
    RemotePlatformConformance,
    SequencedPlatformConformance,
)
from tests.support.actuator_platforms import (
    CommandPlatform,
    KedaPlatform,
    KubernetesPlatform,
    WebhookPlatform,
    keda_platform,
    kubernetes_platform,
    webhook_platform,
)


class TestKubernetes(ActuatorConformance, FencedPlatformConformance, RemotePlatformConformance):
    @pytest.fixture
    async def platform(self, tmp_path: Path) -> AsyncIterator[KubernetesPlatform]:
        async with kubernetes_platform(tmp_path) as platform:
            yield platform


class TestKeda(ActuatorConformance, FencedPlatformConformance):
    @pytest.fixture
    async def platform(self) -> AsyncIterator[KedaPlatform]:
        async with keda_platform() as platform:
            yield platform


class TestCommand(
    ActuatorConformance,
    FencedPlatformConformance,
    RemotePlatformConformance,
    SequencedPlatformConformance,
):
    @pytest.fixture
    def platform(self, tmp_path: Path) -> CommandPlatform:
        return CommandPlatform(tmp_path)


class TestWebhook(
    ActuatorConformance,
    FencedPlatformConformance,
    RemotePlatformConformance,
    SequencedPlatformConformance,
):
    @pytest.fixture
    async def platform(self, tmp_path: Path) -> AsyncIterator[WebhookPlatform]:
        async with webhook_platform(tmp_path) as platform:
            yield platform
