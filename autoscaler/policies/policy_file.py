"""The policies of a file, read again when it changes. A bad file keeps the policies in force."""

import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from autoscaler.policies.policies import Policies
from autoscaler.policies.policy_reader import FILE_BYTES_MAX, InvalidPoliciesError, read_policies


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What changes when a file is written or replaced; links are followed."""

    inode: int
    device: int
    size: int
    mtime_ns: int
    is_regular: bool = True


StampReader: TypeAlias = Callable[[Path], FileStamp]
"""Returns the stamp of a file. Raises OSError."""

BytesReader: TypeAlias = Callable[[Path, int], bytes]
"""Returns at most so many bytes of a file. Raises OSError."""


@dataclass(frozen=True, slots=True)
class Reload:
    """What became of a file that changed."""

    problems: tuple[str, ...] = ()  # none: its policies are in force; else the old ones are

    @property
    def is_accepted(self) -> bool:
        """Whether the policies of the file are in force."""
        return not self.problems


class PolicyFile:
    """Policies from a file, which the caller asks to look at again.

    `refresh` belongs to one thread. `policies` is replaced whole, so each thread may read it, and
    uses what it has read for a whole decision.
    """

    def __init__(
        self, path: Path, *, read_stamp: StampReader | None = None, read: BytesReader | None = None
    ) -> None:
        """Read the file. Raises InvalidPoliciesError: there are no older policies to keep."""
        self._path = path
        self._read_stamp = read_stamp or stamp_of_file
        self._read = read or read_bytes
        self._stamp: FileStamp | None = None  # of the last bytes; None: they are read again
        self._problems: tuple[str, ...] = ()
        policies = self._load(self._stamp_now())
        if policies is None:
            raise InvalidPoliciesError([f"{path}: The file changes while it is read."])
        self._policies = policies

    @property
    def policies(self) -> Policies:
        """The policies in force."""
        return self._policies

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the file as it is now is not in force; none if it is."""
        return self._problems

    def refresh(self) -> Reload | None:
        """Read the file again if its stamp changed. Return what became of it, once a change.

        None: nothing new. A file that cannot be read counts as bad until it can.
        """
        problems_before = self._problems
        try:
            stamp = self._stamp_now()
            if stamp == self._stamp:
                return None
            policies = self._load(stamp)
        except InvalidPoliciesError as error:
            self._problems = error.problems
            return None if self._problems == problems_before else Reload(self._problems)
        if policies is None:
            return None
        self._policies, self._problems = policies, ()
        return Reload()

    def _stamp_now(self) -> FileStamp:
        """Return the stamp of a regular file. Raises InvalidPoliciesError."""
        try:
            stamp = self._read_stamp(self._path)
        except OSError as error:
            raise self._refusal(_reason(error)) from None
        if not stamp.is_regular:  # a pipe would block
            raise self._refusal("it is not a regular file")
        return stamp

    def _load(self, stamp: FileStamp) -> Policies | None:
        """Return the policies in the file. None: it changed meanwhile, so the next call reads it.

        Raises InvalidPoliciesError.
        """
        try:
            data = self._read(self._path, FILE_BYTES_MAX + 1)
        except OSError as error:
            raise self._refusal(_reason(error)) from None
        if self._stamp_now() != stamp:
            self._stamp = None
            return None
        self._stamp = stamp
        return read_policies(data, str(self._path))

    def _refusal(self, reason: str) -> InvalidPoliciesError:
        """Return the error for a file that cannot be read; it is tried again at each call."""
        self._stamp = None
        return InvalidPoliciesError([f"{self._path}: The file cannot be read: {reason}."])


def stamp_of_file(path: Path) -> FileStamp:
    """Return the stamp of a file. Raises OSError."""
    found = path.stat()
    return FileStamp(
        found.st_ino, found.st_dev, found.st_size, found.st_mtime_ns, stat.S_ISREG(found.st_mode)
    )


def read_bytes(path: Path, bytes_max: int) -> bytes:
    """Return at most so many bytes of a file. Raises OSError."""
    with path.open("rb") as file:
        return file.read(bytes_max)


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
