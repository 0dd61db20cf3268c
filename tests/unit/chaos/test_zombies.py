"""Goal: a role is stopped while it has a lease to lose, and let go on when it has none."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from chaos.drills import zombies
from chaos.errors import DrillError
from chaos.faults.healing import Heal, no_target
from chaos.installations.installation import Installation
from chaos.observations import database

RUNNING = cast("Installation", SimpleNamespace(engine=None))


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens to the role."""
    found: list[str] = []

    def pause(_installation: object, target: str) -> Heal:
        found.append(f"stop {target}")
        return lambda: found.append("go on")

    monkeypatch.setattr(zombies, "pause", pause)
    monkeypatch.setattr(zombies, "_CHECK_S", 0.0)
    return found


def holds(monkeypatch: pytest.MonkeyPatch, *counts: int) -> None:
    looks: Iterator[int] = iter(counts)
    monkeypatch.setattr(database, "losable_lease_count", lambda *_: next(looks))


def test_a_role_stays_stopped_only_with_a_lease_to_lose(
    monkeypatch: pytest.MonkeyPatch, steps: list[str]
) -> None:
    holds(monkeypatch, 0, 0, 1)
    heal = zombies._pause(RUNNING, "a", "finaliser")
    assert steps == ["stop a/finaliser", "go on"] * 2 + ["stop a/finaliser"]
    heal()
    assert steps[-1] == "go on"


def test_a_role_without_leases_is_stopped_at_once(steps: list[str]) -> None:
    zombies._pause(RUNNING, "a", "batcher")
    assert steps == ["stop a/batcher"]


def test_a_role_that_gets_no_lease_stays_stopped_in_the_end(
    monkeypatch: pytest.MonkeyPatch, steps: list[str]
) -> None:
    monkeypatch.setattr(zombies, "HELD_S_MAX", -1.0)
    zombies._pause(RUNNING, "a", "intake")
    assert steps == ["stop a/intake"]


def test_a_role_goes_on_when_nobody_can_look(
    monkeypatch: pytest.MonkeyPatch, steps: list[str]
) -> None:
    holds(monkeypatch)
    with pytest.raises(StopIteration):
        zombies._pause(RUNNING, "a", "intake")
    assert steps == ["stop a/intake", "go on"]


def test_a_role_that_is_not_there_was_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zombies, "pause", lambda *_: no_target)
    with pytest.raises(DrillError):
        zombies._pause(RUNNING, "a", "intake")
