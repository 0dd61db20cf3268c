"""Goal: a role is paused while it has a lease to lose, and resumed when it has none."""

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
    """The pauses and resumptions of the role."""
    found: list[str] = []

    def pause(_installation: object, target: str) -> Heal:
        found.append(f"pause {target}")
        return lambda: found.append("resume")

    monkeypatch.setattr(zombies, "pause_role", pause)
    monkeypatch.setattr(zombies, "_CHECK_S", 0.0)
    return found


def holds(monkeypatch: pytest.MonkeyPatch, *counts: int) -> None:
    counted: Iterator[int] = iter(counts)
    monkeypatch.setattr(database, "losable_lease_count", lambda *_: next(counted))


@pytest.mark.parametrize(
    ("role", "losable", "held_s_max", "attempts"),
    [("finaliser", [0, 0, 1], 15.0, 3), ("batcher", [], 15.0, 1), ("intake", [], -1.0, 1)],
    ids=["until it has a lease to lose", "without leases", "too late for a lease"],
)
def test_a_role_stays_paused(
    monkeypatch: pytest.MonkeyPatch,
    steps: list[str],
    role: str,
    losable: list[int],
    held_s_max: float,
    attempts: int,
) -> None:
    monkeypatch.setattr(zombies, "HELD_S_MAX", held_s_max)
    holds(monkeypatch, *losable)
    heal = zombies._pause(RUNNING, "a", role)
    assert steps == [f"pause a/{role}", "resume"] * (attempts - 1) + [f"pause a/{role}"]
    heal()
    assert steps[-1] == "resume"


def test_a_role_is_resumed_when_the_check_fails(
    monkeypatch: pytest.MonkeyPatch, steps: list[str]
) -> None:
    holds(monkeypatch)
    with pytest.raises(StopIteration):
        zombies._pause(RUNNING, "a", "intake")
    assert steps == ["pause a/intake", "resume"]


def test_a_dead_role_cannot_be_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zombies, "pause_role", lambda *_: no_target)
    with pytest.raises(DrillError):
        zombies._pause(RUNNING, "a", "intake")
