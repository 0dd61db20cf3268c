"""Goal: `millrace batch delete` asks for the one thing, and says that it is done."""

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


def test_the_command_deletes(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Recorder()
    monkeypatch.setattr(batch_commands, "connect", lambda _url, _key: client)
    ran = CliRunner().invoke(app, ["batch", "delete", "batch_1", "--key", "sk-x"])
    assert ran.stdout == "deleted\n"
    assert client.deleted == ["/batches/batch_1"]
