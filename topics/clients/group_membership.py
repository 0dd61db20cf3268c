"""Records this process's group membership on disk, so that its successor can remove it.

A broker removes a silent member only after its session timeout, since it cannot tell a dead process
from a paused one. The successor on the same machine can: the kernel releases the lock on the
membership file exactly when the process that holds it ends.
"""

import fcntl
import logging
import os
from pathlib import Path
from typing import Final

from topics.settings import GroupProtocol, KafkaSettings

_LOG = logging.getLogger(__name__)

_FILE_BYTES_MAX: Final = 1024
"""A member id is a client's name and a UUID; longer content is not one."""

_REMOVE_S_MAX: Final = 1.0
"""Longest delay of a start while the broker does not answer; the session then ends by itself."""


class GroupMembership:
    """The file of one group in `members_folder`; does nothing without such a folder."""

    def __init__(self, settings: KafkaSettings, group: str, protocol: GroupProtocol) -> None:
        """Lock the file of `group`, given with its prefix, until this process ends.

        A file that another process has locked, or that cannot be opened, is not used.
        """
        self._settings, self._group, self._protocol = settings, group, protocol
        self._descriptor: int | None = None
        self._recorded = ""
        if settings.members_folder is not None:
            self._lock(settings.members_folder)

    def remove_predecessor(self) -> None:
        """Remove the member that the previous process left behind, if there is one.

        Waits for the broker, for at most a second. Call it before joining: this member then gets
        its predecessor's partitions and the others keep theirs.
        """
        if (member_id := self._predecessor()) is None:
            return
        from topics.clients.member_removal import remove_member

        remove_member(
            self._settings, self._group, member_id, self._protocol, timeout_s=_REMOVE_S_MAX
        )

    def record_member_id(self, member_id: str | None) -> None:
        """Write this member's id to the file; before it joins it may have none."""
        if self._descriptor is None or not member_id or member_id == self._recorded:
            return
        self._recorded = member_id
        self._write(f"{self._protocol} {member_id}\n")

    def clear(self) -> None:
        """Empty and unlock the file: this member has left the group itself."""
        if self._descriptor is not None:
            self._write("")
            os.close(self._descriptor)
            self._descriptor = None

    def _lock(self, folder: Path) -> None:
        descriptor = None
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(folder / self._group, flags, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if descriptor is not None:
                os.close(descriptor)
            _LOG.warning("membership_not_noted", extra={"reason": error.strerror})
            return
        self._descriptor = descriptor

    def _predecessor(self) -> str | None:
        if self._descriptor is None:
            return None
        content = os.pread(self._descriptor, _FILE_BYTES_MAX, 0).decode(errors="replace")
        protocol, _, member_id = content.rstrip("\n").partition(" ")
        is_complete = content.endswith("\n") and protocol == self._protocol and member_id
        return member_id if is_complete else None

    def _write(self, content: str) -> None:
        assert self._descriptor is not None
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, content.encode(), 0)
        except OSError as error:  # a full disk: the session timeout then removes the member
            _LOG.warning("membership_not_noted", extra={"reason": error.strerror})
