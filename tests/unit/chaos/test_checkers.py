"""Goal: each checker finds and times the planted violation, and nothing in a correct history."""

import math

import pytest
from msgspec.structs import replace

from chaos.checkers import acceptance, end_states, executions, outages, results, states
from chaos.checkers.executions import ItemEvent
from chaos.checkers.outages import Probe, Sample
from chaos.checkers.results import Usage
from chaos.checkers.states import Transition
from chaos.clients.history import Operation, Phase
from chaos.drills.postgres_loss import check_readiness
from chaos.observations.role_counters import (
    DUPLICATES,
    parse_sample,
    refused_writes,
    total_increase,
)
from chaos.verification.lifecycle import GRAPH


def step(op: str, key: str, phase: Phase, t: float = 0.0, **detail: object) -> Operation:
    return Operation(t=t, client="c", op=op, key=key, phase=phase, detail=detail)


def watched(t: float, status: str, **stamps: int) -> Operation:
    return step("watch", "job", "ok", t, asked_s=t - 0.1, status=status, created_at=1, **stamps)


def test_acknowledged_jobs_must_end() -> None:
    history = [
        step("create", "k1", "invoke"),
        step("create", "k1", "ok", id="batch_1"),
        step("create", "k2", "info"),  # unknown: it may exist or not
        step("create", "k3", "ok", id="batch_3"),
        step("create", "k4", "ok", id="batch_4"),
    ]
    accepted = acceptance.acknowledged_ids(history).values()
    found = {"batch_1": "completed", "batch_3": "in_progress", "batch_2": "finalizing"}
    broken = acceptance.missing_or_unfinished(accepted, found, {"completed"})
    assert broken == {"batch_3": "in_progress", "batch_4": "missing"}
    without_id = acceptance.acknowledged_ids([step("create", "k", "ok", id=None)]).values()
    assert acceptance.missing_or_unfinished(without_id, found, {"completed"})


def test_one_key_has_one_id_and_a_probe_may_create_one() -> None:
    history = [step("create", "k", "ok", id="1"), step("create", "k", "ok", id="1")]
    assert acceptance.conflicting_ids(history) == {}
    assert acceptance.conflicting_ids([*history, step("create", "k", "ok", id="2")]) == {"k": "1 2"}
    probes = [step("probe", "create", "ok", id="3"), step("probe", "create", "fail", id=None)]
    assert acceptance.probed_ids([*history, *probes, step("probe", "look", "ok")]) == {"3"}


def answer(key: str, *, replayed: bool, digest: str = "d", status: int = 200) -> Operation:
    return step("create", key, "ok", id="1", replayed=replayed, digest=digest, status=status)


def test_a_key_has_one_response_and_its_replays() -> None:
    fine = [answer("k", replayed=False), answer("k", replayed=True), answer("m", replayed=True)]
    assert acceptance.inconsistent_replays(fine) == {}
    assert acceptance.lost_responses(fine) == ["m"]
    for wrong in (
        answer("k", replayed=False),
        answer("k", replayed=True, digest="e"),
        answer("k", replayed=True, status=201),
    ):
        assert acceptance.inconsistent_replays([*fine, wrong]).keys() == {"k"}


def test_requests_in_flight_during_a_kill_are_counted() -> None:
    refused = step("create", "k", "info", failure="ConnectError")
    assert acceptance.broken_connections([refused, step("create", "k", "ok")]) == 0
    assert acceptance.broken_connections([step("create", "k", "info", failure="ReadError")]) == 1


def test_each_item_appears_once() -> None:
    assert results.compare_ids(["a", "b"], ["b", "a"]).total == 0
    miscount = results.compare_ids(["a", "b", "c"], ["a", "a", "c", "x"])
    assert (miscount.missing, miscount.duplicated, miscount.foreign) == (["b"], ["a"], ["x"])
    assert miscount.total == 3


def test_bills_are_compared_exactly() -> None:
    right = Usage(items=2, input_tokens=10, output_tokens=5)
    assert right.difference(right) == 0
    assert right.difference(Usage(items=2, input_tokens=10, output_tokens=6)) == 1
    assert right.difference(Usage(items=4, input_tokens=10, output_tokens=5)) == 2


SHOWN: dict[str, object] = {
    "request_counts": {"total": 6, "completed": 2, "failed": 1},
    "millrace": {"succeeded": 2, "failed": 1, "cancelled": 2, "expired": 1},
    "usage": {"input_tokens": 10, "output_tokens": 5},
}
CODES = ["item_timeout", "batch_cancelled", "batch_cancelled", "batch_expired"]


def tally_mismatches(shown: dict[str, object] = SHOWN, **read_counters: int) -> list[str]:
    files = results.tally_from_files(Usage(items=2, input_tokens=10, output_tokens=5), 2, CODES)
    counters = replace(files, **read_counters)
    tallies = {"files": files, "counters": counters, "job": results.tally_from_job(shown)}
    return results.tally_mismatches(6, tallies, {"request_counts": 6})


def test_counters_are_compared_with_the_files() -> None:
    assert tally_mismatches() == []
    assert tally_mismatches(succeeded=3, failed=0) == [
        "succeeded: files 2, counters 3",
        "failed: files 1, counters 0",
    ]
    assert tally_mismatches(expired=2) == ["counters: 7 items of 6", "expired: files 1, counters 2"]
    assert tally_mismatches(output_tokens=6) == ["output_tokens: files 5, counters 6"]


def test_a_job_object_is_compared_with_its_files() -> None:
    completed = {**SHOWN, "request_counts": {"total": 6, "completed": 3, "failed": 1}}
    assert "succeeded: files 2, job -1" in tally_mismatches(completed)
    billed = {**SHOWN, "usage": {"input_tokens": 10, "output_tokens": 4}}
    assert tally_mismatches(billed) == ["output_tokens: files 5, job 4"]
    assert len(tally_mismatches({})) == 7  # each number, and their sum
    assert results.tally_mismatches(
        6, {"files": results.Tally(failed=6)}, {"request_counts": 5}
    ) == ["request_counts: 5 items of 6"]


def test_transitions_follow_the_graph() -> None:
    legal = [
        Transition(job="j", old="validating", new="in_progress"),
        Transition(job="j", old="in_progress", new="in_progress"),
        Transition(job="j", old="in_progress", new="finalizing"),
    ]
    assert states.illegal_transitions(legal, GRAPH) == []
    back = Transition(job="j", old="completed", new="in_progress")
    skipped = Transition(job="j", old="in_progress", new="completed")
    stamped = Transition(job="j", old="finalizing", new="finalizing", changed_stamps=["failed_at"])
    assert states.illegal_transitions([*legal, back, skipped, stamped], GRAPH) == [
        back,
        skipped,
        stamped,
    ]


def test_observed_states_never_go_back() -> None:
    life = [
        watched(1, "validating"),
        watched(2, "finalizing", in_progress_at=2),
        watched(3, "completed", in_progress_at=2, finalizing_at=2, completed_at=3),
    ]
    assert states.contradictory_observations(life, GRAPH) == []
    back = watched(4, "finalizing", in_progress_at=2, finalizing_at=2)
    assert states.contradictory_observations([*life, back], GRAPH) == [
        "job: completed and then finalizing",
        "job: completed_at was 3 and is None",
    ]
    overlaps = step("watch", "job", "ok", 5, asked_s=0.5, status="validating", created_at=1)
    assert states.contradictory_observations([watched(1, "in_progress"), overlaps], GRAPH) == []


def test_timestamps_stay_and_are_ordered() -> None:
    moved = [
        watched(1, "in_progress", in_progress_at=2),
        watched(2, "in_progress", in_progress_at=3),
    ]
    assert states.contradictory_observations(moved, GRAPH) == ["job: in_progress_at was 2 and is 3"]
    lost = [watched(1, "in_progress", in_progress_at=2), watched(2, "in_progress")]
    assert len(states.contradictory_observations(lost, GRAPH)) == 1
    early = [watched(9, "completed", in_progress_at=5, finalizing_at=4, completed_at=6)]
    assert states.contradictory_observations(early, GRAPH) == [
        "job: finalizing_at before in_progress_at"
    ]


@pytest.mark.parametrize(
    ("status", "stamps", "wrong"),
    [
        ("cancelled", {"cancelling_at": 3, "cancelled_at": 2}, "cancelled_at before cancelling_at"),
        ("cancelling", {"in_progress_at": 3, "cancelling_at": 2}, "cancelling_at before in_prog"),
        ("cancelling", {"cancelling_at": 0.5}, "cancelling_at before created_at"),
        ("expired", {"in_progress_at": 2, "finalizing_at": 4, "expired_at": 3}, "expired_at bef"),
        ("failed", {"failed_at": 0.5}, "failed_at before created_at"),
        ("failed", {}, "failed without failed_at"),
        ("cancelled", {"cancelled_at": 2}, "cancelled without cancelling_at"),
        ("in_progress", {"in_progress_at": 2, "failed_at": 3}, "in_progress with failed_at"),
        ("cancelled", {"cancelling_at": 2, "cancelled_at": 2}, None),
        ("cancelled", {"in_progress_at": 1, "cancelling_at": 2, "cancelled_at": 3}, None),
        ("cancelling", {"in_progress_at": 1, "finalizing_at": 2, "cancelling_at": 3}, None),
        ("expired", {"in_progress_at": 1, "finalizing_at": 2, "expired_at": 3}, None),
        ("failed", {"failed_at": 1}, None),
    ],
)
def test_timestamps_of_an_end_are_checked(
    status: str, stamps: dict[str, int], wrong: str | None
) -> None:
    found = states.contradictory_observations([watched(9, status, **stamps)], GRAPH)
    assert len(found) == (wrong is not None)
    assert all(str(wrong) in contradiction for contradiction in found)


def test_executions_are_counted_and_timed() -> None:
    starts = [ItemEvent(1.0, "a"), ItemEvent(2.0, "b"), ItemEvent(5.0, "a")]
    assert executions.started_after(starts, 4.0) == [ItemEvent(5.0, "a")]
    assert executions.seconds_to_last_start(starts, 4.0) == 1.0
    assert executions.seconds_to_last_start([], 4.0) == 0.0


def test_items_answered_before_the_end_have_finished() -> None:
    answers = [ItemEvent(1.0, "a"), ItemEvent(4.0, "b"), ItemEvent(8.5, "c")]
    assert executions.finished_before(answers, 10.0, [], commit_s=2.0) == {"a", "b"}
    assert executions.finished_before(answers, 10.0, [5.0], commit_s=2.0) == {"a"}
    again = [*answers, ItemEvent(6.0, "b")]  # re-executed after the death that lost its answer
    assert executions.finished_before(again, 10.0, [5.0], commit_s=2.0) == {"a", "b"}


def test_an_output_file_has_exactly_the_finished_items() -> None:
    assert executions.output_mismatches({"a"}, {"a", "b"}, {"a", "b"}) == {}
    wrong = executions.output_mismatches({"a", "b"}, {"a", "b"}, {"a", "c"})
    assert set(wrong) == {"b", "c"}


def test_reexecutions_count_for_the_kill_before_them() -> None:
    starts = [
        ItemEvent(5.0, "a"),
        ItemEvent(1.0, "a"),
        ItemEvent(2.0, "b"),
        ItemEvent(9.0, "b"),
        ItemEvent(9.5, "c"),
    ]
    assert executions.reexecutions_after(starts, [4.0, 8.0]) == [1, 1]
    assert executions.reexecutions_after([*starts, ItemEvent(3.0, "b")], [4.0, 8.0]) == [2, 1]
    assert executions.reexecutions_after(starts[1:3], [4.0]) == [0]


def test_a_restarted_counter_is_added_completely() -> None:
    before = {"a": 5.0, "b": 7.0}
    assert total_increase(before, {"a": 8.0, "b": 7.0}) == 3
    assert total_increase(before, {"a": 5.0, "b": 2.0}) == 2


def test_a_counter_is_found_by_its_labels() -> None:
    text = """# TYPE millrace_lease_writes_refused_total counter
millrace_lease_writes_refused_total{role="append"} 2.0
millrace_lease_writes_refused_total{role="intake"} 4.0
millrace_results_duplicates_total 7.0
millrace_results_duplicates_created 1.7e+09
"""
    assert parse_sample(text, refused_writes("intake")) == 4
    assert parse_sample(text, refused_writes("finaliser")) == 0
    assert parse_sample(text, DUPLICATES) == 7


def test_only_poison_items_may_fail() -> None:
    expected = {"item-1": "item_timeout", "item-2": "item_crashes_engine"}
    assert end_states.unexpected_failures(expected, dict(expected)) == {}
    found = {"item-1": "batch_expired", "item-3": "item_timeout"}
    assert set(end_states.unexpected_failures(expected, found)) == {"item-1", "item-2", "item-3"}


def test_a_refused_file_has_an_error_for_each_invalid_line() -> None:
    def job(status: str, codes: dict[int, str]) -> dict[str, object]:
        data = [{"line": line, "code": code} for line, code in codes.items()]
        return {"status": status, "errors": {"object": "list", "data": data}}

    expected = {2: "a", 4: "b"}
    assert end_states.line_error_mismatches(expected, job("failed", expected)) == []
    wrong = end_states.line_error_mismatches(expected, job("failed", {2: "b", 3: "a"}))
    assert wrong == [
        "line 2: b instead of a",
        "line 3: a instead of None",
        "line 4: None instead of b",
    ]
    assert (
        len(end_states.line_error_mismatches(expected, {"status": "completed", "errors": None}))
        == 3
    )


def samples(*rates: float) -> list[Sample]:
    """A counter sampled ten times a second, with one rate in each second."""
    found, count = [Sample(0.0, 0)], 0.0
    for second, rate in enumerate(rates):
        for tenth in range(1, 11):
            count += rate / 10
            found.append(Sample(second + tenth / 10, round(count)))
    return found


@pytest.mark.parametrize(
    ("rates", "since_s", "settled_s", "took_s"),
    [
        ([100, 100, 0, 0, 100, 100, 100], 2.0, 0.0, 2.0),
        ([100] * 6, 2.0, 0.0, 0.0),
        ([100, 100, 0, 50, 80, 80], 2.0, 0.0, math.inf),
        ([100, 100, 100, 0, 0, 100, 100, 100], 2.0, 0.0, 3.0),
        ([100, 100, 0, 0, 150, 0, 50, *[100] * 6], 2.0, 0.0, 1.6),
        ([100, 100, 0, 0, 150, 0, 50, *[100] * 6], 2.0, 3.0, 4.6),
        ([100, 100, 100, 100, 0, 0], 1.0, 3.0, math.inf),
    ],
    ids=["back", "never fell", "stays low", "in flight", "burst", "settled", "late dip"],
)
def test_a_recovered_rate_is_timed_from_the_kill(
    rates: list[float], since_s: float, settled_s: float, took_s: float
) -> None:
    found = outages.seconds_to_recovery(
        samples(*rates), since_s, 90.0, over_s=1.0, settled_s=settled_s
    )
    assert found == pytest.approx(took_s, abs=0.41 if settled_s else 0.11)


def test_a_stalled_rate_is_not_steady() -> None:
    assert outages.steady_rate(samples(100, 80, 120), 3.0, over_s=2.0) == pytest.approx(100, abs=2)
    for still in (samples(100, 0, 0), samples(100, 100, 0), samples(100, 0, 400), samples()):
        assert outages.steady_rate(still, 3.0, over_s=2.0) is None
    assert outages.rate([Sample(1.0, 5)], 0.0, 2.0) == 0.0  # of too few samples


def probe(asked_s: float, status: int, took_s: float = 0.1, *, retry_after: bool = True) -> Probe:
    return Probe(asked_s=asked_s, took_s=took_s, status=status, retry_after=retry_after)


def test_the_only_proper_refusal_is_503_with_retry_after() -> None:
    proper = [probe(0, 200), probe(1, 503)]
    assert outages.improper_refusals(proper) == []
    wrong = [probe(2, 500), probe(3, 0), probe(4, 503, retry_after=False)]
    assert outages.improper_refusals([*proper, *wrong]) == wrong
    assert outages.improper_refusals([probe(5, 507)], proper=(503, 507)) == []


def test_the_longest_and_the_first_response_are_found() -> None:
    seen = [probe(0, 200), probe(1, 503, 9.0), probe(11, 503), probe(12, 200, 0.5)]
    assert outages.longest_response_s(seen) == 9.0
    assert outages.longest_response_s([]) == 0.0
    assert outages.seconds_to_response(seen, 0.5, good=False) == pytest.approx(9.5)
    assert outages.seconds_to_response(seen, 10.0, good=True) == pytest.approx(2.5)
    assert outages.seconds_to_response(seen, 13.0, good=True) == float("inf")


def test_probes_are_read_from_a_history() -> None:
    detail = {"asked_s": 1.0, "status": 503, "retry_after": True}
    history = [
        Operation(t=3.0, client="p", op="probe", key="/readyz", phase="fail", detail=detail),
        Operation(t=3.0, client="p", op="watch", key="/readyz", phase="ok"),
    ]
    (found,) = outages.probes(history, "/readyz")
    assert (found.took_s, found.status, found.retry_after) == (2.0, 503, True)


READINESS_MEASURES = (
    "losses before which readiness was bad",
    "until readiness says so",
    "from heal to readiness",
)


@pytest.mark.parametrize(
    ("seen", "must_flip", "passed"),
    [
        # Good before the outage; bad soon after its start; good again after its healing.
        (((1, 200), (3, 503), (9, 503), (11, 200)), True, [True, True, True]),
        (((1, 200), (3, 503), (11, 503), (15, 503)), True, [True, True, False]),
        (((1, 503), (3, 503), (11, 200)), True, [False, True, True]),
        (((3, 503), (11, 200)), True, [False, True, True]),
        (((1, 200), (6, 200), (7.5, 503), (11, 200)), True, [True, False, True]),
        (((1, 200), (11, 200)), False, [True, True]),  # a restart that no probe observed
    ],
)
def test_readiness_turns_bad_in_an_outage_from_2_to_10_s_and_recovers(
    seen: tuple[tuple[float, int], ...], must_flip: bool, passed: list[bool]
) -> None:
    probes = [probe(*one) for one in seen]
    found = check_readiness("stopped", probes, 2.0, 10.0, must_flip=must_flip)
    assert [measure.passed for measure in found] == passed
    if must_flip:
        assert [m.what for m in found] == [f"stopped: {what}" for what in READINESS_MEASURES]
