"""Goal: the newest state of a version or key decides; one that is unreadable lets nothing load."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_consumers.weights.errors import ModelRefusedError, RefusalReason, StagingStoppedError
from gpu_consumers.weights.registry_state import (
    ADAPTER_WAIT_S_MAX,
    WAIT_S_MAX,
    AdapterVersions,
    ModelVersions,
    RegistryReader,
    RegistryStates,
)
from tests.support.clock import ManualClock
from topics.records.codec import encode, kind_headers
from topics.records.model_states import ModelKeyState, ModelState, model_state_key
from topics.records.received_record import ReceivedRecord

VERSION, KEY, BASE = "a" * 64, "b" * 64, "c" * 64


def record(state: ModelState | ModelKeyState, value: bytes | None = None) -> ReceivedRecord:
    content = encode(state) if value is None else value
    return received(model_state_key(state), content, kind_headers(type(state)))


def received(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]]
) -> ReceivedRecord:
    return ReceivedRecord("models", 0, 0, key, headers, value, 0)


def version_state(revision: int = 1, *, name: str = "m", retired: bool = False) -> ModelState:
    return ModelState(name=name, version=VERSION, pool="p", revision=revision, retired=retired)


def key_state(revision: int = 1, *, revoked: bool = False) -> ModelKeyState:
    return ModelKeyState(key_id=KEY, revision=revision, revoked=revoked)


def states_of(*records: ReceivedRecord) -> RegistryStates:
    states = RegistryStates()
    for one in records:
        states.apply(one)
    return states


@given(st.permutations(range(6)))
def test_the_highest_revision_counts_in_any_order(order: Sequence[int]) -> None:
    states = states_of(
        *(record(version_state(n, retired=n % 2 == 1)) for n in order),
        *(record(key_state(n, revoked=n % 2 == 1)) for n in order),
    )
    assert [state.retired for state in states.version_states(VERSION)] == [True]
    assert states.revoked_keys() == {KEY}


def test_a_removed_version_is_unknown() -> None:
    removed = received(f"version:m@{VERSION}".encode(), None, [])
    assert states_of(record(version_state()), removed).version_states(VERSION) == []


def test_an_unreadable_version_is_unknown_until_it_is_written_again() -> None:
    bad = record(version_state(2), b"\xc1")
    assert states_of(record(version_state()), bad).version_states(VERSION) == []
    again = states_of(record(version_state()), bad, record(version_state(3)))
    assert again.version_states(VERSION) == [version_state(3)]


@pytest.mark.parametrize("headers", [kind_headers(ModelKeyState), []])
def test_an_unreadable_key_is_revoked(headers: list[tuple[str, bytes]]) -> None:
    bad = received(f"key:{KEY}".encode(), b"\xc1", headers)
    assert states_of(record(key_state()), bad).revoked_keys() == {KEY}
    assert states_of(bad).revoked_keys() == {KEY}


@given(st.permutations(range(4)))
def test_compaction_keeps_final_states_whatever_is_written_later(order: Sequence[int]) -> None:
    written = [
        record(version_state()),
        record(version_state(2, retired=True)),
        record(key_state()),
        record(key_state(2, revoked=True)),
    ]
    newest = {one.key: one for one in (written[number] for number in order)}
    states = states_of(*newest.values())
    assert states.revoked_keys() == {KEY}
    [state] = states.version_states(VERSION)
    assert state.retired


def test_unreadable_final_states_count_by_their_keys() -> None:
    bad = [record(version_state(2, retired=True), b"\xc1")]
    bad.append(record(key_state(2, revoked=True), b"\xc1"))
    states = states_of(*bad, record(version_state()), record(key_state()))
    assert states.revoked_keys() == {KEY}
    [state] = states.version_states(VERSION)
    assert state.retired


def test_records_without_a_key_change_nothing() -> None:
    assert states_of(received(None, b"\xc1", [])).revoked_keys() == frozenset()


class Topic:
    """A topic whose later records arrive one poll after another."""

    def __init__(self, clock: ManualClock, *later: ReceivedRecord) -> None:
        self.clock, self.now, self.later = clock, list[ReceivedRecord](), list(later)
        self.polls = 0

    def iter_to_end(self, timeout_s: float) -> Iterator[list[ReceivedRecord]]:
        yield list(self.now)
        self.now.clear()

    def poll(self, timeout_s: float) -> list[ReceivedRecord]:
        self.polls += 1
        self.clock.advance(timeout_s)
        return [self.later.pop(0)] if self.later else []


def reader(topic: Topic, *, is_stopped: bool = False) -> ModelVersions:
    return ModelVersions(RegistryReader(topic, clock=topic.clock), "m", lambda _: is_stopped)


def adapters(*states: ModelState) -> AdapterVersions:
    topic = Topic(ManualClock())
    topic.now = [record(state) for state in states]
    return AdapterVersions(RegistryReader(topic, clock=topic.clock), BASE, lambda _: False)


def adapter_state(name: str, *, base: str = BASE, retired: bool = False) -> ModelState:
    return ModelState(name, VERSION, "p", 1, retired, base)


def test_a_version_of_another_name_is_unknown() -> None:
    topic = Topic(ManualClock(), record(version_state(name="n")))
    with pytest.raises(ModelRefusedError) as refusal:
        reader(topic).require_loadable(VERSION)
    assert refusal.value.reason == RefusalReason.UNKNOWN


def test_an_adapter_is_loadable_by_any_name_that_is_not_retired() -> None:
    adapters(adapter_state("a", retired=True), adapter_state("b")).require_loadable(VERSION)
    with pytest.raises(ModelRefusedError) as refusal:
        adapters(adapter_state("a", retired=True)).require_loadable(VERSION)
    assert refusal.value.reason == RefusalReason.RETIRED


@pytest.mark.parametrize("states", [[], [version_state()], [adapter_state("a", base=KEY)]])
def test_what_is_no_adapter_of_the_base_is_unknown_after_a_short_wait(
    states: list[ModelState],
) -> None:
    clock = ManualClock()
    topic = Topic(clock, *map(record, states))
    registry = AdapterVersions(RegistryReader(topic, clock=clock), BASE, lambda _: False)
    with pytest.raises(ModelRefusedError, match="no version") as refusal:
        registry.require_loadable(VERSION)
    assert refusal.value.reason == RefusalReason.UNKNOWN
    assert clock.now_s == ADAPTER_WAIT_S_MAX


def test_a_version_that_was_just_added_is_awaited() -> None:
    topic = Topic(ManualClock(), record(key_state(revoked=True)), record(version_state()))
    registry = reader(topic)
    registry.require_loadable(VERSION)
    assert topic.polls == 2
    assert registry.revoked_keys() == {KEY}


def test_an_unknown_version_is_refused_after_a_minute() -> None:
    topic = Topic(ManualClock())
    with pytest.raises(ModelRefusedError, match="no version") as refusal:
        reader(topic).require_loadable(VERSION)
    assert refusal.value.reason == RefusalReason.UNKNOWN
    assert topic.clock.now_s == WAIT_S_MAX


def test_a_version_retired_meanwhile_is_refused_without_a_wait() -> None:
    topic = Topic(ManualClock(), record(version_state()))
    registry = reader(topic)
    registry.require_loadable(VERSION)
    topic.now = [record(version_state(2, retired=True))]
    with pytest.raises(ModelRefusedError, match="retired") as refusal:
        registry.require_loadable(VERSION)
    assert refusal.value.reason == RefusalReason.RETIRED
    assert topic.polls == 1


def test_reading_ends_when_the_process_stops() -> None:
    with pytest.raises(StagingStoppedError):
        reader(Topic(ManualClock()), is_stopped=True).require_loadable(VERSION)
