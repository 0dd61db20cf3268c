"""Clients of the harness whose server is a function."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from chaos.clients.client import Client
from chaos.clients.history import Recorder

Answer = Callable[[httpx.Request], httpx.Response]
ClientOf = Callable[[Answer], Client]


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    with closing(Recorder(tmp_path / "h.jsonl")) as found:
        yield found


@pytest.fixture
def client_of(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> ClientOf:
    """Return a function that makes a client of a server, without pauses between its requests."""
    monkeypatch.setattr("chaos.clients.client.PAUSE_S", 0.0)

    def make(answer: Answer) -> Client:
        http = httpx.Client(transport=httpx.MockTransport(answer))
        return Client("c", ["http://api"], "key", recorder, http)

    return make
