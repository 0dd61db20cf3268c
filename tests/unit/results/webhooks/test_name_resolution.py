"""Goal: look-ups return the system's result, and the process does not wait for them at exit."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from results.webhooks.endpoints.name_resolution import system_resolver

ROOT = Path(__file__).parents[4]

HANGING = """
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
        [sys.executable, "-c", HANGING],
        cwd=ROOT, capture_output=True, text=True, timeout=50, check=True,
    )  # fmt: skip
    assert done.stdout == "given up\n"
    assert time.monotonic() - began_s < 30  # of the 60 that the look-up takes
