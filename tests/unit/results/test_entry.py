"""Goal: a role that cannot start reports why and ends at once."""

import threading
from pathlib import Path

import pytest

from core.errors import SettingsError
from results.__main__ import main, run_finaliser, run_writer

ENVIRONMENT = {
    "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1",
    "MILLRACE_DATABASE_URL": "postgresql://127.0.0.1:1/none",
}


@pytest.mark.parametrize("arguments", [[], ["reader"], ["writer", "finaliser"]])
def test_wrong_argument_prints_the_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert "writer|finaliser" in capsys.readouterr().err


def test_too_small_pool_is_refused(tmp_path: Path) -> None:
    tight = ENVIRONMENT | {"MILLRACE_DATABASE_POOL_SIZE": "1"}
    objects = {"MILLRACE_OBJECTS_ROOT": str(tmp_path)}

    with pytest.raises(SettingsError, match="MILLRACE_DATABASE_POOL_SIZE"):
        run_writer(tight, threading.Event())
    with pytest.raises(SettingsError, match="at least 10"):
        run_finaliser(tight | objects, threading.Event())


def test_misspelt_variable_is_refused() -> None:
    with pytest.raises(SettingsError, match="MILLRACE_WRITER_GROUP_SIZE"):
        run_writer(ENVIRONMENT | {"MILLRACE_WRITER_GROUP_SIZE": "1"}, threading.Event())
