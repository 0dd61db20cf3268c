"""What the registry says of versions and of keys, from the topic `models`.

The topic is compacted and never expires; of the records of a version or key the highest revision
counts. A record that cannot be read counts against what its key names: a version is unknown, or
retired for good; a key is revoked.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from core.clock import Clock
from core.errors import RecordUnreadableError
from gpu_consumers.weights.cache_locks import Wait
from gpu_consumers.weights.errors import ModelRefusedError, RefusalReason, StagingStoppedError
from topics.records.codec import decode_value, kind_of
from topics.records.kinds import KINDS
from topics.records.model_states import FINAL_REVISION, ModelKeyState, ModelState
from topics.records.received_record import ReceivedRecord

WAIT_S_MAX: Final = 60.0
"""How long a replica waits for its version: a version that was just added may not be on the log."""

_POLL_S: Final = 0.5
_READ_S_MAX: Final = 60.0


ADAPTER_WAIT_S_MAX: Final = 10.0
"""The same for an adapter, whose jobs wait: the registry knew it before it took them."""


class RegistryStates:
    """The states of all versions and keys, as far as the topic was read."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._versions: dict[str, dict[str, ModelState]] = {}  # by version, by name
        self._keys: dict[str, tuple[int, bool]] = {}

    def apply(self, record: ReceivedRecord) -> None:
        """Keep the state of a record unless one of a higher revision is known.

        Raises SchemaTooNewError.
        """
        kind, _, named = (record.key or b"").decode(errors="replace").partition(":")
        if record.value is None:
            self._forget_version(kind, named)
            return
        try:
            self._apply_value(record)
        except RecordUnreadableError:
            self._apply_unreadable(kind, named)

    def version_states(self, version: str) -> list[ModelState]:
        """Return the newest states of a version, one for each name that it has."""
        return [*self._versions.get(version, {}).values()]

    def revoked_keys(self) -> frozenset[str]:
        """Return the ids of all revoked keys."""
        return frozenset(key_id for key_id, (_, revoked) in self._keys.items() if revoked)

    def _apply_value(self, record: ReceivedRecord) -> None:
        if kind_of(record.headers) == KINDS[ModelKeyState]:
            key = decode_value(ModelKeyState, record.value)
            if key.revision >= self._keys.get(key.key_id, (0, False))[0]:
                self._keys[key.key_id] = key.revision, key.revoked
        elif kind_of(record.headers) == KINDS[ModelState]:
            state = decode_value(ModelState, record.value)
            by_name = self._versions.setdefault(state.version, {})
            known = by_name.get(state.name)
            if known is None or state.revision >= known.revision:
                by_name[state.name] = state

    def _apply_unreadable(self, kind: str, named: str) -> None:
        """Apply what the key of a record tells alone."""
        self._forget_version(kind, named)
        name, _, version = named.rpartition("@")
        if kind == "retired":
            state = ModelState(name, version, "", FINAL_REVISION, retired=True)
            self._versions.setdefault(version, {})[name] = state
        elif kind == "key":
            revision, _ = self._keys.get(named, (0, True))
            self._keys[named] = revision, True
        elif kind == "revoked":
            self._keys[named] = FINAL_REVISION, True

    def _forget_version(self, kind: str, named: str) -> None:
        name, _, version = named.rpartition("@")
        if kind == "version":
            self._versions.get(version, {}).pop(name, None)


class TailReader(Protocol):
    """The part of a `TopicTailReader` that is used. Both raise KafkaUnavailableError."""

    def iter_to_end(self, timeout_s: float) -> Iterator[list[ReceivedRecord]]:
        """Yield the records up to the present end."""
        ...

    def poll(self, timeout_s: float) -> list[ReceivedRecord]:
        """Return the records that have arrived."""
        ...


class RegistryReader:
    """Reads the topic `models` whenever it is asked. Used by one thread."""

    def __init__(self, reader: TailReader, *, clock: Clock) -> None:
        """`reader` starts at the oldest record."""
        self._reader, self._clock = reader, clock
        self._states = RegistryStates()

    def read_states(
        self, version: str, wanted: Callable[[ModelState], bool], wait_s_max: float, wait: Wait
    ) -> list[ModelState]:
        """Return the wanted states of a version as of now; wait while there are none.

        Raises KafkaUnavailableError, SchemaTooNewError, StagingStoppedError.
        """
        deadline = self._clock.monotonic_s() + wait_s_max
        for records in self._reader.iter_to_end(_READ_S_MAX):
            self._apply(records, wait)
        while True:
            states = [*filter(wanted, self._states.version_states(version))]
            if states or self._clock.monotonic_s() >= deadline:
                return states
            self._apply(self._reader.poll(_POLL_S), wait)

    def revoked_keys(self) -> frozenset[str]:
        """Return the ids of all revoked keys, as of the last `read_states`."""
        return self._states.revoked_keys()

    def _apply(self, records: list[ReceivedRecord], wait: Wait) -> None:
        if wait(0):
            raise StagingStoppedError
        for record in records:
            self._states.apply(record)


@dataclass(frozen=True, slots=True)
class ModelVersions:
    """A `RegistryView` of the versions of one model name."""

    reader: RegistryReader
    name: str
    wait: Wait

    def require_loadable(self, version: str) -> None:
        """See `RegistryView`. Raises what `read_states` raises, too."""
        states = self.reader.read_states(
            version, lambda state: state.name == self.name, WAIT_S_MAX, self.wait
        )
        _require_active(states, version, f"of the model {self.name!r}")

    def revoked_keys(self) -> frozenset[str]:
        """See `RegistryView`."""
        return self.reader.revoked_keys()


@dataclass(frozen=True, slots=True)
class AdapterVersions:
    """A `RegistryView` of the adapters of one base version, whatever their names."""

    reader: RegistryReader
    base_version: str
    wait: Wait

    def require_loadable(self, version: str) -> None:
        """See `RegistryView`. Raises what `read_states` raises, too."""
        states = self.reader.read_states(
            version,
            lambda state: state.base_version == self.base_version,
            ADAPTER_WAIT_S_MAX,
            self.wait,
        )
        _require_active(states, version, "as an adapter of the model that is loaded")

    def revoked_keys(self) -> frozenset[str]:
        """See `RegistryView`."""
        return self.reader.revoked_keys()


def _require_active(states: list[ModelState], version: str, what: str) -> None:
    """Require that the version has a name under which it is not retired."""
    if not states:
        text = f"The registry has no version {version} {what}."
        raise ModelRefusedError(RefusalReason.UNKNOWN, text)
    if all(state.retired for state in states):
        text = f"The registry has retired version {version} {what}."
        raise ModelRefusedError(RefusalReason.RETIRED, text)
