"""Notes of which groups a process is in, so that its successor can leave them in its name.

A broker takes a silent member for dead after a session, since it cannot tell death from a pause.
Whoever starts in its place on the same machine can: the kernel drops the lock on a note when the
process ends that holds it, and not before.
"""

import fcntl
import logging
import os
from pathlib import Path
from typing import Final

from topics.settings import GroupProtocol, KafkaSettings

_LOG = logging.getLogger(__name__)

_NOTE_BYTES_MAX: Final = 1024
"""Ids are a client's name and a UUID; what is longer is no note."""

_LEAVE_S_MAX: Final = 1.0
"""A start waits so long for a broker that is away, not longer: the session ends by itself."""


class GroupMembership:
    """One place in a group, noted in `members_folder`; without such a folder nothing is."""

    def __init__(self, settings: KafkaSettings, group: str, protocol: GroupProtocol) -> None:
        """Hold the note of `group`, given with its prefix, as long as this process lives.

        A note that another process holds is left alone, and one that cannot be opened is missed.
        """
        self._settings, self._group, self._protocol = settings, group, protocol
        self._descriptor: int | None = None
        self._noted = ""
        if settings.members_folder is not None:
            self._hold(settings.members_folder)

    def remove_predecessor(self) -> None:
        """Leave in the name of the process that held the note before, if it has not left itself.

        Waits for the broker, a second at most. Call it before joining: what was the predecessor's
        comes here then, and others keep what they have.
        """
        if (member_id := self._predecessor()) is None:
            return
        from topics.clients.member_removal import remove_member

        remove_member(
            self._settings, self._group, member_id, self._protocol, timeout_s=_LEAVE_S_MAX
        )

    def record_member_id(self, member_id: str | None) -> None:
        """Note the id under which the broker knows this member; none, perhaps, before it joins."""
        if self._descriptor is None or not member_id or member_id == self._noted:
            return
        self._noted = member_id
        self._write(f"{self._protocol} {member_id}\n")

    def clear(self) -> None:
        """The group was left in good order: nothing remains to be done for this member."""
        if self._descriptor is not None:
            self._write("")
            os.close(self._descriptor)
            self._descriptor = None

    def _hold(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(folder / self._group, flags, 0o600)
        except OSError as error:
            _LOG.warning("membership_not_noted", extra={"reason": error.strerror})
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            _LOG.warning("membership_not_noted", extra={"reason": error.strerror})
            return
        self._descriptor = descriptor

    def _predecessor(self) -> str | None:
        if self._descriptor is None:
            return None
        note = os.pread(self._descriptor, _NOTE_BYTES_MAX, 0).decode(errors="replace")
        protocol, _, member_id = note.rstrip("\n").partition(" ")
        is_whole = note.endswith("\n") and protocol == self._protocol and member_id
        return member_id if is_whole else None

    def _write(self, note: str) -> None:
        assert self._descriptor is not None
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, note.encode(), 0)
        except OSError as error:  # no room: its session ends the membership then
            _LOG.warning("membership_not_noted", extra={"reason": error.strerror})
