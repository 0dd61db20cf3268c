"""Goal: a port that cannot be used is a settings error, and metrics are optional."""

import socket
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from core.errors import SettingsError
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
