"""Goal: folders of killed runs are removed, others are kept, and no signal interrupts clean-up."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from chaos.installations.cleanup import (
    EXIT_SIGNALS,
    Owner,
    claim_folder,
    cleanup_on_exit,
    raise_on_signals,
    remove_stale_folders,
)


def folder(parent: Path, name: str, owner: Owner | None) -> Path:
    made = parent / f"millrace-chaos-{name}"
    (made / "services").mkdir(parents=True)
    if owner:
        (made / "owner.json").write_bytes(msgspec.json.encode(owner))
    return made


def test_only_folders_of_dead_owners_are_removed(tmp_path: Path) -> None:
    dead = folder(tmp_path, "dead", Owner(os.getpid(), 1.0))  # its process id was reused
    kept = folder(tmp_path, "kept", None)
    mine = folder(tmp_path, "mine", None)
    claim_folder(mine)
    notes: list[str] = []

    remove_stale_folders(tmp_path, notes.append)

    assert [one.exists() for one in (dead, kept, mine)] == [False, True, True]
    assert len(notes) == 1


def test_a_folder_with_a_mounted_disk_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = folder(tmp_path, "dead", Owner(os.getpid(), 1.0))

    disk = SimpleNamespace(mountpoint=str(dead / "services"))  # not mounted, so unmounting fails
    monkeypatch.setattr("psutil.disk_partitions", lambda **_: [disk])
    notes: list[str] = []
    remove_stale_folders(tmp_path, notes.append)
    assert dead.exists()
    assert "stays mounted" in notes[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_does_not_interrupt_clean_up(number: signal.Signals) -> None:
    before = {one: signal.getsignal(one) for one in EXIT_SIGNALS}
    done: list[str] = []

    def clean_up() -> None:
        signal.raise_signal(number)
        done.append("unmounted")

    def work() -> None:
        with cleanup_on_exit() as closing:
            closing.callback(clean_up)
            signal.raise_signal(number)

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job may ignore it
        raise_on_signals()
        with pytest.raises((SystemExit, KeyboardInterrupt)):
            work()
        assert done == ["unmounted"]
        with pytest.raises((SystemExit, KeyboardInterrupt)):
            signal.raise_signal(number)  # as before
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
