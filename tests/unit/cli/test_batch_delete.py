"""Goal: `millrace batch delete` sends one request and confirms it."""

import pytest
from typer.testing import CliRunner

from cli.batch import batch_commands
from cli.main import app


class Recorder:
    """Stands for the official client."""

    def __init__(self) -> None:
        self.deleted: list[str] = []

    def delete(self, path: str, *, cast_to: type) -> object:
        self.deleted.append(path)
        return cast_to()


def test_delete_sends_one_request_and_confirms(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Recorder()
    monkeypatch.setattr(batch_commands, "connect", lambda _url, _key: client)
    ran = CliRunner().invoke(app, ["batch", "delete", "batch_1", "--key", "sk-x"])
    assert ran.stdout == "deleted\n"
    assert client.deleted == ["/batches/batch_1"]
