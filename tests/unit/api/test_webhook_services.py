"""Goal: hanging look-ups delay only their tenant, and a client that waits in vain gets an error."""

import asyncio
from uuid import UUID

import pytest

from api.http.errors import ApiError
from api.webhooks import webhook_services
from api.webhooks.webhook_services import WebhookServices
from results.webhooks.endpoints.address_policy import AddressPolicy
from results.webhooks.endpoints.name_resolution import DnsLookups
from results.webhooks.settings import WebhookSettings

ME, OTHER = UUID(int=1), UUID(int=2)
HANGING, QUICK = "https://hanging.example.com/", "https://quick.example.com/"
WAIT_S = 0.05


class Names:
    """A name server that answers for one host when it is told to; counts its threads."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.busy = 0

    async def resolve(self, host: str, _: int) -> list[str]:
        if host.startswith("hanging"):
            self.busy += 1
            await self.answers.wait()
            self.busy -= 1
        return ["93.184.216.34"]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    monkeypatch.setattr(webhook_services, "_LOOK_UP_S", WAIT_S)
    return Names()


def services(names: Names) -> WebhookServices:
    look_ups = DnsLookups(names.resolve, count_max=16, wait_s=WAIT_S)
    return WebhookServices(WebhookSettings(), AddressPolicy(), look_ups, None)


async def refused(asked: WebhookServices, tenant_id: UUID, url: str) -> int:
    with pytest.raises(ApiError) as refusal:
        await asked.validate_url(tenant_id, url, param="url")
    return refusal.value.status


async def test_hanging_lookups_delay_only_their_tenant(names: Names) -> None:
    asked = services(names)
    statuses = await asyncio.gather(*(refused(asked, ME, HANGING) for _ in range(40)))
    assert statuses == [503] * 40
    assert names.busy == 2  # given up, and yet no thread is free before the name server answers
    assert await refused(asked, ME, QUICK) == 503
    assert (await asked.validate_url(OTHER, QUICK, param="url")).host == "quick.example.com"

    names.answers.set()
    await asyncio.sleep(0)
    assert await asked.validate_url(ME, HANGING, param="url")
