"""Goal: roles lose leases while they are paused; zombie writes and lost leases are found."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec.structs import replace

from chaos.checkers import fencing
from chaos.checkers.fencing import CursorMove, LeaseEvent, LostLease
from chaos.drills import zombies
from chaos.drills.lost_leases import (
    PausedRole,
    check_lost_leases,
    leases_lost_during,
    require_losses,
)
from chaos.errors import DrillError
from chaos.faults.healing import Heal, no_target
from chaos.installations.installation import Installation
from chaos.measures import Measure, lease_loss_measure
from chaos.observations import database


def lease(sequence: int, user: str, *, claims: bool, epoch: int) -> LeaseEvent:
    return LeaseEvent(
        sequence=sequence, job="j", role="intake", user=user, claims=claims, epoch=epoch
    )


def test_a_zombie_write_is_found() -> None:
    taken = [
        lease(1, "host_a", claims=True, epoch=1),
        lease(2, "host_a", claims=False, epoch=1),
        lease(3, "host_b", claims=True, epoch=2),
        lease(4, "host_b", claims=False, epoch=2),
    ]
    assert fencing.zombie_writes(taken) == []
    late = lease(5, "host_a", claims=False, epoch=2)
    assert fencing.zombie_writes([late, *taken]) == [late]


def test_a_write_is_legal_only_under_the_holders_epoch() -> None:
    claim = lease(1, "host_a", claims=True, epoch=2)
    write = lease(2, "host_a", claims=False, epoch=2)
    assert fencing.zombie_writes([claim, replace(write, named_epoch=2)]) == []
    for wrong in (
        replace(write, named_epoch=1),
        replace(write, epoch=3),
        replace(write, is_fenced=False),
        replace(write, job="never claimed"),
    ):
        assert fencing.zombie_writes([claim, wrong]) == [wrong]
    again = lease(2, "host_b", claims=True, epoch=2)
    late = lease(3, "host_b", claims=False, epoch=2)
    assert fencing.zombie_writes([claim, again, late]) == [late]


def test_lost_leases_are_found_with_their_late_writes() -> None:
    steps = [
        lease(1, "host_a", claims=True, epoch=1),
        lease(2, "host_b", claims=False, epoch=1),
        lease(3, "host_b", claims=True, epoch=2),
        lease(4, "host_b", claims=True, epoch=3),
        lease(5, "host_a", claims=True, epoch=4),
    ]
    found = [
        (loss.user, loss.sequence, loss.late_writes)
        for loss in fencing.lost_leases(steps, "intake")
    ]
    assert found == [("host_a", 3, 0), ("host_b", 5, 0)]
    assert fencing.lost_leases(steps, "finaliser") == []
    late = [*steps, lease(6, "host_b", claims=False, epoch=4)]
    assert [loss.late_writes for loss in fencing.lost_leases(late, "intake")] == [0, 1]
    used = [steps[0], lease(2, "host_a", claims=False, epoch=1), *steps[2:]]
    assert [loss.was_used for loss in fencing.lost_leases(used, "intake")] == [True, False]


def test_a_drill_without_lost_leases_of_its_role_fails() -> None:
    lost = Measure("P9", lease_loss_measure("intake"), 0)
    broken = Measure("P2", "doubled", 1)
    assert require_losses([lost], {"intake": 1}) == [lost]
    assert require_losses([broken], {"intake": 1}) == [broken]
    for found in ([], [Measure("P9", lease_loss_measure("finaliser"), 0)]):
        with pytest.raises(DrillError, match="intake"):
            require_losses(found, {"intake": 1})


def loss(job: str, late_writes: int = 0) -> LostLease:
    return LostLease(job=job, user="host_a", sequence=1, late_writes=late_writes)


def test_lost_leases_are_reported_with_their_refused_writes() -> None:
    stop = PausedRole("a", "finaliser", 0, 9)
    losses = [(stop, [loss("j"), loss("k", 2)])]
    lost, wrong, refusals, _ = check_lost_leases("finaliser", losses, 3)
    assert (lost.passed, wrong.passed) == (True, False)
    assert lost.what == lease_loss_measure("finaliser")
    assert (refusals.value, refusals.size, refusals.evidence) == (3, 2, "")
    *_, untested, _ = check_lost_leases("finaliser", losses, 0)
    assert (untested.value, untested.size) == (0, 2)
    assert "nothing to refuse" in untested.evidence


def test_a_pause_counts_the_leases_lost_during_it() -> None:
    steps = [
        lease(1, "host_a", claims=True, epoch=1),
        lease(2, "host_b", claims=True, epoch=2),
        lease(3, "host_a", claims=True, epoch=3),
    ]
    (lost,) = leases_lost_during(steps, PausedRole("a", "intake", 1, 2))
    assert (lost.job, lost.sequence) == ("j", 2)
    assert leases_lost_during(steps, PausedRole("a", "intake", 2, 3)) == []
    assert leases_lost_during(steps, PausedRole("b", "finaliser", 0, 3)) == []


def test_backward_moves_of_a_cursor_are_found() -> None:
    back = CursorMove(job="j", old=200, new=100)
    assert fencing.backward_moves([CursorMove(job="j", old=0, new=9), back]) == [back]


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
