"""Goal: a port that cannot be used is a settings error, and metrics are optional."""

import socket
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from core.errors import SettingsError
from core.runtime import metrics
from core.runtime.metrics import serve_metrics
from tests.support.ports import free_port


@dataclass(frozen=True)
class Role:
    """Settings of a role."""

    env_prefix: ClassVar[str] = "MILLRACE_ROLE_"
    metrics_port: int | None
    metrics_host: str = "127.0.0.1"


def test_a_port_that_cannot_be_used_is_a_settings_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"MILLRACE_ROLE_METRICS_PORT.*{port}.*in use"):
            serve_metrics(Role(port))
    with pytest.raises(SettingsError, match="MILLRACE_ROLE_METRICS_PORT"):
        serve_metrics(Role(0, "192.0.2.1"))


def test_metrics_are_served_only_with_a_port(tmp_path: Path) -> None:
    serve_metrics(Role(None))
    port = free_port(tmp_path)
    serve_metrics(Role(port))

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert answer.status == 200
        assert b"millrace_role_ready" in answer.read()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_readiness_is_served_beside_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    is_ready = threading.Event()
    monkeypatch.setattr(metrics, "IS_READY", is_ready)
    port = free_port(tmp_path)
    serve_metrics(Role(port, host))
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/readyz"

    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url)
    with refused.value:
        assert refused.value.code == 503
    is_ready.set()
    with urllib.request.urlopen(url) as answer:
        assert (answer.status, answer.read()) == (200, b"ready\n")
