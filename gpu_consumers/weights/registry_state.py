"""What the registry says of a model's versions and of keys, from the topic `models`.

The topic is compacted and never expires; of the records of a version or key the highest revision
counts. A record that cannot be read counts against what it names: its version is unknown, its key
revoked.
"""

from collections.abc import Iterator
from typing import Final, Protocol

from core.clock import Clock
from core.errors import RecordUnreadableError
from gpu_consumers.weights.cache_locks import Wait
from gpu_consumers.weights.errors import ModelRefusedError, RefusalReason, StagingStoppedError
from topics.records.codec import decode_value, kind_of
from topics.records.kinds import KINDS
from topics.records.model_states import ModelKeyState, ModelState
from topics.records.received_record import ReceivedRecord

WAIT_S_MAX: Final = 60.0
"""How long a replica waits for its version: a version that was just added may not be on the log."""

_POLL_S: Final = 0.5
_READ_S_MAX: Final = 60.0


class RegistryStates:
    """The states of one model name's versions, and of all keys, as far as the topic was read."""

    def __init__(self, name: str) -> None:
        """States of other names are not kept."""
        self._name = name
        self._versions: dict[str, ModelState] = {}
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
            self._forget_version(kind, named)
            if kind == "key":
                revision, _ = self._keys.get(named, (0, True))
                self._keys[named] = revision, True

    def version_state(self, version: str) -> ModelState | None:
        """Return the newest state of a version; None for one that is unknown."""
        return self._versions.get(version)

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
            known = self._versions.get(state.version)
            is_newer = known is None or state.revision >= known.revision
            if state.name == self._name and is_newer:
                self._versions[state.version] = state

    def _forget_version(self, kind: str, named: str) -> None:
        name, _, version = named.rpartition("@")
        if kind == "version" and name == self._name:
            self._versions.pop(version, None)


class TailReader(Protocol):
    """The part of a `TopicTailReader` that is used. Both raise KafkaUnavailableError."""

    def iter_to_end(self, timeout_s: float) -> Iterator[list[ReceivedRecord]]:
        """Yield the records up to the present end."""
        ...

    def poll(self, timeout_s: float) -> list[ReceivedRecord]:
        """Return the records that have arrived."""
        ...


class RegistryReader:
    """A `RegistryView` that reads the topic `models` whenever it is asked."""

    def __init__(self, reader: TailReader, name: str, *, clock: Clock, wait: Wait) -> None:
        """`reader` starts at the oldest record; `name` is the name that the replica serves."""
        self._reader, self._name, self._clock, self._wait = reader, name, clock, wait
        self._states = RegistryStates(name)

    def require_loadable(self, version: str) -> None:
        """See `RegistryView`. Waits for an unknown version for at most `WAIT_S_MAX`.

        Raises KafkaUnavailableError, SchemaTooNewError, StagingStoppedError, too.
        """
        deadline = self._clock.monotonic_s() + WAIT_S_MAX
        for records in self._reader.iter_to_end(_READ_S_MAX):
            self._apply(records)
        while self._states.version_state(version) is None and self._clock.monotonic_s() < deadline:
            self._apply(self._reader.poll(_POLL_S))
        state = self._states.version_state(version)
        if state is None:
            text = f"The registry has no version {version} of the model {self._name!r}."
            raise ModelRefusedError(RefusalReason.UNKNOWN, text)
        if state.retired:
            text = f"The registry has retired version {version} of the model {self._name!r}."
            raise ModelRefusedError(RefusalReason.RETIRED, text)

    def revoked_keys(self) -> frozenset[str]:
        """See `RegistryView`."""
        return self._states.revoked_keys()

    def _apply(self, records: list[ReceivedRecord]) -> None:
        if self._wait(0):
            raise StagingStoppedError
        for record in records:
            self._states.apply(record)
