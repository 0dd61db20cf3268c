"""The replicas of a pool that were ordered, against those that are seen. For one thread.

A replica that was ordered and is not seen yet counts as one that starts, of the kind that was
ordered, until it had time to come (`settle_s`); so an order stays the same while it is carried out.
A spot replica that did not come makes its offer unavailable. Starts are measured by matching the
oldest order of a kind with the next new replica of the kind.

A replica that does not become ready in time is stuck: it is no capacity, and is to end. Only then
is another one of its kind ordered, since a platform that counts would keep the one that it has.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from autoscaler.ownership.pool_memory import OPEN_STARTS_MAX, OpenStart, StartTimes
from autoscaler.policy.placement import Addition, Offer
from autoscaler.policy.signals import ReplicaSignal, ReplicaState

RESTORE_S: Final = 10.0
"""Time after a takeover in which ordered replicas that are not seen yet are taken to exist."""

SPOT_RETRY_S: Final = 600.0
"""Time for which spot GPUs of a type and zone are not ordered after they did not come."""

STUCK_MIN_S: Final = 600.0
"""Shortest time after which a replica that still starts is stuck; at least 3 cold starts."""

PLACEHOLDER: Final = "ordered:"
"""Beginning of the ids of replicas that were ordered and not seen."""


class Kind(NamedTuple):
    """What an order tells replicas apart by."""

    gpu_type: str
    zone: str
    spot: bool


def kind_of(replica: ReplicaSignal | OpenStart | Addition) -> Kind:
    """Return the kind of a replica."""
    return Kind(replica.gpu_type, replica.zone, replica.spot)


def count_kinds(replicas: Iterable[ReplicaSignal]) -> Counter[Kind]:
    """Return how many replicas of each kind do not drain."""
    plain = Counter(
        [
            (one.gpu_type, one.zone, one.spot)
            for one in replicas
            if one.state is not ReplicaState.DRAINING
        ]
    )
    return Counter({Kind(*kind): count for kind, count in plain.items()})


def _claimed(one: OpenStart, found: Mapping[Kind, deque[str]]) -> list[OpenStart]:
    """Return an open start after new replicas of its kind claimed it; they leave `found`."""
    ids = None if one.replica_id else found.get(kind_of(one))
    if not ids:
        return [one]
    count = min(one.count, len(ids))
    claimed = [replace(one, count=1, replica_id=ids.popleft()) for _ in range(count)]
    return claimed if count == one.count else [*claimed, replace(one, count=one.count - count)]


class Fleet:
    """Ordered and seen replicas of one pool."""

    def __init__(self) -> None:
        """Start with nothing ordered."""
        self.kinds: Counter[Kind] = Counter()
        """Replicas that are to exist, those of the warm pool included."""
        self.standby = 0
        self.awake: dict[str, float] = {}
        """Replicas of the warm pool that were woken and exist; when those without credit were."""
        self.times = StartTimes()
        self.unavailable_spot: dict[Offer, float] = {}
        """Offers that did not come, and until when they are not ordered."""
        self._open: list[OpenStart] = []
        self._removing: dict[str, float] = {}
        self._known: dict[str, ReplicaSignal] = {}
        self._existing: Counter[Kind] = Counter()  # that are seen and do not drain
        self._restored_s: float | None = None
        self._at_s = 0.0  # of the last advance
        self._starting: dict[str, float] = {}  # since when, by id
        self._stuck: set[str] = set()

    def restore(
        self,
        kinds: Mapping[Kind, int],
        awake: Mapping[str, float],
        removing: Iterable[str],
        open_starts: Iterable[OpenStart],
        now_s: float,
    ) -> None:
        """Go on with what an earlier owner ordered."""
        self._removing = dict.fromkeys(removing, now_s)
        self.kinds, self.awake = Counter(kinds), dict(awake)
        self._open, self._restored_s = list(open_starts), now_s
        self._move_back(now_s)

    @property
    def open_starts(self) -> tuple[OpenStart, ...]:
        """The newest starts that wait for their first credit, to be remembered."""
        return tuple(self._open[-OPEN_STARTS_MAX:])

    @property
    def waking_since_s(self) -> float:
        """When the oldest replica that starts or wakes was ordered; 0: none does."""
        stuck = self._stuck
        waking = [at_s for name, at_s in self.awake.items() if at_s > 0 and name not in stuck]
        starting = [one.at_s for one in self._open if one.replica_id not in stuck]
        return min(starting + waking, default=0.0)

    @property
    def existing(self) -> Counter[Kind]:
        """Replicas that are seen and do not drain, by kind."""
        return self._existing

    @property
    def asleep(self) -> int:
        """How many replicas are loaded and out of the group now."""
        return sum(one.state is ReplicaState.ASLEEP for one in self._known.values())

    @property
    def stuck(self) -> Counter[Kind]:
        """Replicas that did not become ready in time and exist, by kind."""
        return Counter(kind_of(self._known[name]) for name in self._stuck)

    @property
    def removing(self) -> list[str]:
        """The replicas that are to end, by id."""
        return sorted(self._removing)

    def is_carried_out(self) -> bool:
        """Return whether as many replicas of each kind are seen as are ordered."""
        return self._existing == +self.kinds

    def advance(
        self, seen: Iterable[ReplicaSignal], now_s: float, settle_s: float
    ) -> tuple[ReplicaSignal, ...]:
        """Return the replicas by which to decide: seen ones, and ordered ones that are to come."""
        current = {one.replica_id: one for one in seen}
        if now_s < self._at_s:
            self._move_back(now_s)
        self._at_s = now_s
        self._match_new(current, now_s)
        self._note_lost(current, now_s)
        self._measure(current, now_s)
        self._known = current
        self._note_stuck(current, now_s, settle_s)
        self._existing = count_kinds(current.values())
        existing = self._existing - self.stuck
        self._settle_removals(current, existing, now_s, settle_s)
        self._settle_open(existing, now_s, settle_s)
        pending = self._placeholders(existing, now_s)
        found = list(current.values())
        if self._removing or self.awake:
            found = [self._shown(one) for one in found]
        return tuple(self._with_standby([*found, *pending]))

    def order(
        self,
        kinds: Counter[Kind],
        additions: Iterable[Addition],
        removals: Iterable[str],
        standby: int,
        now_s: float,
    ) -> None:
        """Remember what is ordered now."""
        before, self.kinds, self.standby = self.kinds, +kinds, standby
        added: Counter[Kind] = Counter()
        for one in additions:
            if one.wake_replica_id is None:
                added[kind_of(one)] += 1
            elif not one.wake_replica_id.startswith(PLACEHOLDER):
                self.awake[one.wake_replica_id] = now_s
        for kind, count in added.items():
            self._open.append(OpenStart(at_s=now_s, count=count, **kind._asdict()))
        for replica_id in removals:
            if not replica_id.startswith(PLACEHOLDER):
                self._removing[replica_id] = now_s
        for replica_id, known in self._known.items():
            # One that drains by itself is the one to end, not a healthy one of the kind.
            if known.state is ReplicaState.DRAINING:
                kind = kind_of(known)
                if self.kinds[kind] < before[kind]:
                    self._removing.setdefault(replica_id, now_s)

    def refuse_spot(self, replica: ReplicaSignal, now_s: float) -> None:
        """Order no spot GPU of the type and zone of a replica for a while."""
        self.unavailable_spot[replica.gpu_type, replica.zone] = now_s + SPOT_RETRY_S

    def mark_unmeasured(self) -> None:
        """Do not measure starts that are open: the platform did not accept their order at once."""
        self._open = [replace(one, is_measured=False) for one in self._open]

    def _match_new(self, current: Mapping[str, ReplicaSignal], now_s: float) -> None:
        is_restoring = self._restored_s is not None and now_s - self._restored_s < RESTORE_S
        named = {one.replica_id for one in self._open if one.replica_id}
        found: defaultdict[Kind, deque[str]] = defaultdict(deque)
        for replica_id, one in current.items():
            if replica_id in self._known or replica_id in named:
                continue
            # In the first seconds of an owner, a replica that is ready may be an old one.
            if is_restoring and one.state is not ReplicaState.STARTING:
                continue
            found[kind_of(one)].append(replica_id)
        if found:
            self._open = [rest for one in self._open for rest in _claimed(one, found)]

    def _note_lost(self, current: Mapping[str, ReplicaSignal], now_s: float) -> None:
        """Expect that the platform starts a replica again that ended by itself."""
        lost = self._known.keys() - current.keys()
        if self._restored_s is None or now_s - self._restored_s >= RESTORE_S:
            self.awake = {name: at_s for name, at_s in self.awake.items() if name in current}
        if not lost:
            return
        self._open = [start for start in self._open if start.replica_id not in lost]
        again = Counter(
            kind_of(self._known[name])
            for name in lost
            if name not in self._removing and self._known[name].state is not ReplicaState.DRAINING
        )
        for name in lost:
            self.awake.pop(name, None)
        for kind, count in sorted(again.items()):
            start = OpenStart(at_s=now_s, count=count, is_measured=False, **kind._asdict())
            self._open.append(start)

    def _measure(self, current: Mapping[str, ReplicaSignal], now_s: float) -> None:
        kept = []
        for one in self._open:
            replica = current.get(one.replica_id) if one.replica_id else None
            if replica is None or replica.state is ReplicaState.STARTING:
                kept.append(one)
            elif replica.state is ReplicaState.WARM and one.is_measured:
                self.times = self.times.with_start(one.gpu_type, now_s - one.at_s)
        self._open = kept
        for replica_id, at_s in self.awake.items():
            woken = current.get(replica_id)
            if at_s > 0 and woken is not None and woken.state is ReplicaState.WARM:
                self.times = self.times.with_wake(now_s - at_s)
                self.awake[replica_id] = 0.0

    def _note_stuck(
        self, current: Mapping[str, ReplicaSignal], now_s: float, settle_s: float
    ) -> None:
        """Find replicas that had more than enough time to become ready; they are to end."""
        ordered = {one.replica_id: one.at_s for one in self._open if one.replica_id}
        self._starting = {
            name: self._starting.get(name, ordered.get(name, now_s))
            for name, one in current.items()
            if one.state is ReplicaState.STARTING
        }
        start_s_max = max(STUCK_MIN_S, 1.5 * settle_s)  # `settle_s` is two cold starts
        self._stuck = {name for name, at_s in self._starting.items() if now_s - at_s >= start_s_max}
        for name, at_s in self.awake.items():
            if name in current and current[name].state is ReplicaState.ASLEEP:
                self.awake[name] = at_s or now_s  # of an unknown time: it counts from here
                if now_s - self.awake[name] >= settle_s:
                    self._stuck.add(name)
        for name in self._stuck:
            self._removing.setdefault(name, now_s)

    def _move_back(self, now_s: float) -> None:
        """Take times that are ahead of a clock that went back as now."""
        self._open = [replace(one, at_s=min(one.at_s, now_s)) for one in self._open]
        for times in (self.awake, self._removing, self._starting):
            times.update({name: min(at_s, now_s) for name, at_s in times.items()})
        until_s_max = now_s + SPOT_RETRY_S
        self.unavailable_spot = {
            offer: min(until_s, until_s_max) for offer, until_s in self.unavailable_spot.items()
        }
        if self._restored_s is not None:
            self._restored_s = min(self._restored_s, now_s)

    def _settle_removals(
        self,
        current: Mapping[str, ReplicaSignal],
        existing: Mapping[Kind, int],
        now_s: float,
        settle_s: float,
    ) -> None:
        """Forget removals that were carried out, also of another replica of the kind, or were not.

        A platform that chooses itself ends any replica of the kind. One that drains or is stuck
        stays named until it has ended.
        """
        draining = ReplicaState.DRAINING
        self._removing = {
            name: at_s
            for name, at_s in self._removing.items()
            if name in current
            and (
                name in self._stuck
                or current[name].state is draining
                or (
                    now_s - at_s < settle_s
                    and existing.get(kind_of(current[name]), 0) > self.kinds[kind_of(current[name])]
                )
            )
        }

    def _settle_open(self, existing: Mapping[Kind, int], now_s: float, settle_s: float) -> None:
        """Drop starts that had time to come, and those beyond what is ordered, the oldest first.

        A replica that was seen is kept until it is warm or lost, however long it takes.
        """
        is_restoring = self._restored_s is not None and now_s - self._restored_s < RESTORE_S
        room = {kind: self.kinds[kind] - existing.get(kind, 0) for kind in self.kinds}
        kept: list[OpenStart] = []
        for one in reversed(self._open):
            kind = kind_of(one)
            if one.replica_id:
                if is_restoring or one.replica_id in self._known:
                    kept.append(one)
                continue
            if now_s - one.at_s >= settle_s:
                if one.spot:
                    self.unavailable_spot[one.gpu_type, one.zone] = now_s + SPOT_RETRY_S
                continue
            if (count := min(one.count, room.get(kind, 0))) > 0:
                room[kind] -= count
                kept.append(replace(one, count=count))
        self._open = kept[::-1]
        self.unavailable_spot = {
            offer: until_s for offer, until_s in self.unavailable_spot.items() if until_s > now_s
        }

    def _placeholders(self, existing: Mapping[Kind, int], now_s: float) -> list[ReplicaSignal]:
        counts: Counter[Kind] = Counter()
        for one in self._open:
            if not one.replica_id:
                counts[kind_of(one)] += one.count
        if self._restored_s is not None and now_s - self._restored_s < RESTORE_S:
            for kind, count in self.kinds.items():
                counts[kind] = max(counts[kind], count - existing.get(kind, 0))
        return [
            ReplicaSignal(
                replica_id=f"{PLACEHOLDER}{'/'.join(map(str, kind))}:{number}",
                state=ReplicaState.STARTING,
                **kind._asdict(),
            )
            for kind, count in sorted(counts.items())
            for number in range(count)
        ]

    def _shown(self, one: ReplicaSignal) -> ReplicaSignal:
        if one.replica_id in self._removing and one.state is not ReplicaState.DRAINING:
            return replace(one, state=ReplicaState.DRAINING)
        if one.state is ReplicaState.ASLEEP and one.replica_id in self.awake:
            return replace(one, state=ReplicaState.STARTING)
        return one

    def _with_standby(self, replicas: list[ReplicaSignal]) -> list[ReplicaSignal]:
        """Mark replicas that start for the warm pool, the last ones first."""
        missing = self.standby - sum(one.state is ReplicaState.ASLEEP for one in replicas)
        for number in range(len(replicas) - 1, -1, -1):
            if missing <= 0:
                break
            one = replicas[number]
            if one.state is ReplicaState.STARTING and one.replica_id not in self.awake:
                replicas[number] = replace(one, standby=True)
                missing -= 1
        return replicas
