"""Goal: hanging look-ups delay only their tenant, no receiver's failure count and no exit."""

import asyncio
import socket
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest

from results.webhooks.endpoints.address_policy import AddressPolicy
from results.webhooks.endpoints.name_resolution import (
    AddressRefusedError,
    DnsLookups,
    DnsLookupsBusyError,
    allowed_addresses,
    system_resolver,
)
from results.webhooks.endpoints.receiver_urls import parse_url

ADDRESS = "93.184.216.34"
HANGING = parse_url("https://hanging.example.com/", allow_private=False)
QUICK = parse_url("https://quick.example.com/", allow_private=False)
UNKNOWN = parse_url("https://unknown.example.com/", allow_private=False)
NUMBERS = parse_url(f"https://{ADDRESS}/", allow_private=False)
WAIT_S = 0.05


class Names:
    """A name server that answers for one host when a test says so."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()

    async def resolve(self, host: str, _: int) -> list[str]:
        if host == HANGING.host:
            await self.answers.wait()
        if host == UNKNOWN.host:
            raise OSError(host)
        return [ADDRESS]


def lookups_of(names: Names, count_max: int = 1) -> DnsLookups:
    return DnsLookups(names.resolve, count_max=count_max, wait_s=WAIT_S)


async def test_tenant_gets_a_share_of_the_slots() -> None:
    names, mine, other = Names(), uuid4(), uuid4()
    look_ups = lookups_of(names, 16)
    begun = [await look_ups.start(mine, HANGING) for _ in range(2)]
    with pytest.raises(DnsLookupsBusyError):
        await look_ups.start(mine, QUICK)

    assert await (await look_ups.start(other, QUICK)) == [ADDRESS]
    names.answers.set()
    assert [await looked_up for looked_up in begun] == [[ADDRESS]] * 2
    assert await (await look_ups.start(mine, QUICK)) == [ADDRESS]


async def test_abandoned_look_up_keeps_its_slot_and_waiting_for_it_times_out() -> None:
    names, mine, other = Names(), uuid4(), uuid4()
    look_ups = lookups_of(names)
    looked_up = await look_ups.start(mine, HANGING)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(looked_up, WAIT_S)
    for tenant_id in (mine, other):
        with pytest.raises(DnsLookupsBusyError):
            await look_ups.start(tenant_id, QUICK)
    assert await (await look_ups.start(other, NUMBERS)) == [ADDRESS]  # nothing is looked up

    names.answers.set()
    for tenant_id in (mine, other):
        assert await (await look_ups.start(tenant_id, QUICK)) == [ADDRESS]


async def test_failed_look_up_releases_its_slot() -> None:
    names, mine = Names(), uuid4()
    look_ups = lookups_of(names)
    for _ in range(3):
        with pytest.raises(AddressRefusedError):
            await allowed_addresses(await look_ups.start(mine, UNKNOWN), AddressPolicy())


ROOT = Path(__file__).parents[4]

RESOLVER_HANGS = """
import asyncio, socket, time
from results.webhooks.endpoints import name_resolution as resolving

socket.getaddrinfo = lambda *_, **__: time.sleep(60)

async def give_up():
    try:
        await asyncio.wait_for(resolving.system_resolver("hanging.example.com", 443), 0.1)
    except TimeoutError:
        print("given up")

asyncio.run(give_up())
"""


async def test_system_resolver_returns_addresses_and_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(host: str, port: int, *, type: int) -> list[object]:  # noqa: A002
        if host != "known.example.com":
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(None, None, None, "", (address, port)) for address in ("1.1.1.1", "::1", "::1")]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    assert await system_resolver("known.example.com", 443) == ["1.1.1.1", "::1"]
    with pytest.raises(socket.gaierror):
        await system_resolver("unknown.example.com", 443)


def test_hanging_look_up_does_not_block_the_exit() -> None:
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", RESOLVER_HANGS],
        cwd=ROOT, capture_output=True, text=True, timeout=50, check=True,
    )  # fmt: skip
    assert done.stdout == "given up\n"
    assert time.monotonic() - began_s < 30  # of the 60 that the look-up takes
