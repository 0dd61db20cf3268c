"""Goal: what a killed run left is removed, what lives or was kept is not; no signal cuts that."""

import os
import signal
from pathlib import Path

import msgspec
import pytest

from chaos.errors import DrillError
from chaos.faults.disk import unmount
from chaos.installations import stale_folders
from chaos.installations.stale_folders import Owner, claim_folder, remove_stale_folders
from chaos.signals import EXIT_SIGNALS, cleanup_on_exit, raise_on_signals


def folder(parent: Path, name: str, owner: Owner | None) -> Path:
    made = parent / f"millrace-chaos-{name}"
    (made / "services").mkdir(parents=True)
    if owner:
        (made / "owner.json").write_bytes(msgspec.json.encode(owner))
    return made


def test_only_folders_of_the_dead_are_removed(tmp_path: Path) -> None:
    dead = folder(tmp_path, "dead", Owner(os.getpid(), 1.0))  # its pid was given away again
    kept = folder(tmp_path, "kept", None)
    mine = folder(tmp_path, "mine", None)
    claim_folder(mine)
    said: list[str] = []

    remove_stale_folders(tmp_path, said.append)

    assert [one.exists() for one in (dead, kept, mine)] == [False, True, True]
    assert len(said) == 1


def test_a_folder_whose_disk_stays_mounted_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = folder(tmp_path, "dead", Owner(os.getpid(), 1.0))

    class Disk:
        mountpoint = str(dead / "services")

    def refuse(found: Path) -> None:
        raise DrillError(f"{found} stays mounted")

    monkeypatch.setattr("psutil.disk_partitions", lambda **_: [Disk()])
    monkeypatch.setattr(stale_folders, "unmount", refuse)
    said: list[str] = []
    remove_stale_folders(tmp_path, said.append)
    assert dead.exists()
    assert "stays mounted" in said[0]


def test_an_unmount_that_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(DrillError, match="stays mounted"):
        unmount(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_run_and_a_second_one_does_not_end_its_clean_up(
    number: signal.Signals,
) -> None:
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
