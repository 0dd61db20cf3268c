"""Reads the lag, the rate and the members of the groups of roles, in a thread of its own.

The rate is the difference of committed offsets over `WINDOW_S`: members commit at intervals. A
broker that does not answer makes the values old, and an old value lowers nothing.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from autoscaler.metrics import GROUP_LAG, GROUP_RATE
from autoscaler.policy.role_need import Role
from core.clock import Clock
from topics.clients.admin import TopicAdmin
from topics.errors import KafkaUnavailableError
from topics.records.access import MEASURED_GROUPS

READ_S: Final = 2.0
"""Time between two readings of a group."""

WINDOW_S: Final = 10.0
"""Time over which a rate is measured."""

GROUP_OF_ROLE: Final[Mapping[Role, str]] = {
    Role.BATCHER: "batcher-bulk",
    Role.RESULTS_WRITER: "results-writer",
}
"""The group whose lag scales a role, without prefix."""

_STOP_S_MAX: Final = 5.0
_LOG = logging.getLogger(__name__)


class GroupReading(NamedTuple):
    """The offsets of a group at a time."""

    at_s: float
    offsets: Mapping[int, tuple[int, int]]  # next offset and end, by partition
    members: int


class GroupLoad(NamedTuple):
    """What a group does."""

    at_s: float
    members: int
    records_per_s: float
    waiting_records: float

    @property
    def lag_s(self) -> float:
        """Seconds in which the group works off what waits; infinite while it does nothing."""
        if self.waiting_records <= 0:
            return 0.0
        return self.waiting_records / self.records_per_s if self.records_per_s > 0 else float("inf")


def group_load(first: GroupReading, last: GroupReading) -> GroupLoad | None:
    """Return the load between two readings; None: no time has passed. Offsets set back count 0."""
    seconds = last.at_s - first.at_s
    if seconds <= 0:
        return None
    done = sum(
        max(0, following - first.offsets[partition][0])
        for partition, (following, _) in last.offsets.items()
        if partition in first.offsets
    )
    waiting = sum(max(0, end - following) for following, end in last.offsets.values())
    return GroupLoad(last.at_s, last.members, done / seconds, float(waiting))


class GroupLags:
    """The newest load of each role that is read. `loads` may be read by any thread."""

    def __init__(
        self,
        read: Callable[[Role], GroupReading],
        roles: Callable[[], Collection[Role]],
        monotonic_s: Callable[[], float],
    ) -> None:
        """`read` raises KafkaUnavailableError; `roles` are the ones that are scaled now."""
        self._read, self._roles, self._monotonic_s = read, roles, monotonic_s
        self._windows: dict[Role, deque[GroupReading]] = {}
        self._loads: dict[Role, GroupLoad] = {}
        self._is_unread: set[Role] = set()
        self._failure: Exception | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="group-lags", daemon=True)

    @property
    def loads(self) -> Mapping[Role, GroupLoad]:
        """The newest load of each role whose group was read twice."""
        return dict(self._loads)

    def start(self) -> None:
        """Read until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, or leave it if a broker does not answer it."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_S_MAX)

    def raise_failure(self) -> None:
        """Raise what ended the thread."""
        if self._failure is not None:
            raise self._failure

    def run_once(self) -> None:
        """Read the group of each role that is scaled."""
        wanted = [role for role in GROUP_OF_ROLE if role in self._roles()]
        for role in [one for one in self._windows if one not in wanted]:
            del self._windows[role]
            self._loads.pop(role, None)
        for role in wanted:
            try:
                reading = self._read(role)
            except KafkaUnavailableError as error:
                if role not in self._is_unread:
                    self._is_unread.add(role)
                    facts = {"group": GROUP_OF_ROLE[role], "reason": str(error)}
                    _LOG.warning("the lag of a group cannot be read", extra=facts)
                continue
            self._is_unread.discard(role)
            self._add(role, reading)

    def _add(self, role: Role, reading: GroupReading) -> None:
        window = self._windows.setdefault(role, deque())
        window.append(reading)
        while len(window) > 2 and reading.at_s - window[1].at_s >= WINDOW_S:
            window.popleft()
        load = group_load(window[0], reading)
        if load is None:
            return
        self._loads[role] = load
        GROUP_LAG.labels(GROUP_OF_ROLE[role]).set(load.waiting_records)
        GROUP_RATE.labels(GROUP_OF_ROLE[role]).set(load.records_per_s)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                started_s = self._monotonic_s()
                self.run_once()
                self._stopping.wait(max(0.0, started_s + READ_S - self._monotonic_s()))
        except Exception as failure:  # noqa: BLE001  the thread's loop: see `raise_failure`
            self._failure = failure


def group_reader(admin: TopicAdmin, clock: Clock) -> Callable[[Role], GroupReading]:
    """Return a function that reads the group of a role. It raises KafkaUnavailableError."""

    def read(role: Role) -> GroupReading:
        group, at_s = GROUP_OF_ROLE[role], clock.wall_s()
        offsets = admin.group_offsets(group, MEASURED_GROUPS[group])
        return GroupReading(at_s, offsets, admin.member_count(group))

    return read
