"""Goal: all mistakes in the settings of a role are reported at once."""

from typing import ClassVar

import pytest

from core.errors import SettingsError
from core.settings import Settings, read_all


class LogSettings(Settings):
    """Settings of one client."""

    env_prefix: ClassVar[str] = "LOG_"
    servers: str = "here"


class RoleSettings(Settings):
    """Settings of a role."""

    env_prefix: ClassVar[str] = "ROLE_"
    window_s: float = 1.0


def test_mistakes_of_all_classes_are_in_one_line() -> None:
    env = {"LOG_FOO": "1", "LOG_BAR": "2", "ROLE_WINDOW_S": "secret"}
    with pytest.raises(SettingsError) as raised:
        read_all(env, LogSettings.from_env, RoleSettings.from_env)

    line = str(raised.value)
    assert [part.split(": ")[0] for part in line.split("; ")] == [
        "LOG_FOO",
        "LOG_BAR",
        "ROLE_WINDOW_S",
    ]
    assert "secret" not in line


def test_instances_come_in_the_order_of_their_readers() -> None:
    env = {"ROLE_WINDOW_S": "2", "OTHER": "x"}
    role, log = read_all(env, RoleSettings.from_env, LogSettings.from_env)

    assert (role.window_s, log.servers) == (2.0, "here")


def test_errors_other_than_settings_errors_propagate() -> None:
    def broken(_: object) -> None:
        raise OSError

    with pytest.raises(OSError, match=r"^$"):
        read_all({"LOG_FOO": "1"}, LogSettings.from_env, broken)
