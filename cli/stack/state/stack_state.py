"""`DATA/stack.json`: addresses of a running embedded stack for other commands; mode 0600."""

from pathlib import Path

import msgspec

from cli.stack.state.private_files import write_private
from core.errors import SettingsError

_NAME = "stack.json"


class StackState(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of a stack's services. The database URL may contain a password."""

    url: str  # of the API, without /v1
    kafka_bootstrap_servers: str
    database_url: str
    pools: list[str]
    metrics_ports: dict[str, int]  # role or replica name to its port on 127.0.0.1


def write_state(data: Path, state: StackState) -> None:
    """Replace the state in `data` atomically."""
    write_private(data / _NAME, msgspec.json.format(msgspec.json.encode(state)))


def read_state(data: Path) -> StackState | None:
    """Return the state in `data`, or None when the file does not exist.

    A killed stack leaves its state behind. Raises SettingsError for a file that this release
    cannot read.
    """
    try:
        return msgspec.json.decode((data / _NAME).read_bytes(), type=StackState)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError:
        raise SettingsError(f"{data / _NAME} was not written by this release.") from None


def remove_state(data: Path) -> None:
    """Remove the state in `data`, if any."""
    (data / _NAME).unlink(missing_ok=True)
