"""Measures: one number of one trial with its limit; summaries over many trials; the report."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

Relation = Literal["<=", ">=", "goal", "report"]
"""How a value compares with its limit: `goal` is an upper bound that is aimed at and not promised;
`report` has no limit."""


OTHER_DRILLS: Final = "other drills"
CONFIDENCE: Final = 0.95
_STEPS: Final = 60
"""Halvings of the interval, more than a float can resolve."""


class Measure(msgspec.Struct, frozen=True):
    """The result of one trial."""

    promise: str  # as docs/chaos.md numbers them: P1, or A12 for recovery
    what: str
    value: float  # infinite, null in JSON: never
    limit: float = 0.0
    relation: Relation = "<="
    unit: str = ""
    size: int = 1  # number of observations: items, requests, rows
    evidence: str = ""  # details that help to analyse a failure
    part: str = ""  # the drill; `OTHER_DRILLS` when that drill does not test this promise
    seed: int = 0  # of its round
    rerun: str = ""  # the command that repeats its round alone; identifies the round

    @property
    def has_evidence(self) -> bool:
        """Whether the trial observed anything: 0 violations in 0 items prove nothing."""
        return self.relation == "report" or self.size > 0 or not self.passed

    @property
    def passed(self) -> bool:
        """Whether the value is within its limit; a reported value always is."""
        if self.relation == "report":
            return True
        return self.value >= self.limit if self.relation == ">=" else self.value <= self.limit

    @property
    def is_violation(self) -> bool:
        """Whether the value breaks a promise, rather than misses a goal."""
        return not self.passed and self.relation != "goal"


def violations(
    promise: str, what: str, wrong: Collection[str] | Mapping[str, str], *, size: int
) -> Measure:
    """Return a measure that counts what is wrong, with the first five as evidence.

    `wrong` is descriptions, or maps a name to a description. `size` is how many were checked.
    """
    if isinstance(wrong, Mapping):
        wrong = [f"{name}: {reason}" for name, reason in wrong.items()]
    return Measure(promise, what, len(wrong), size=size, evidence="; ".join(list(wrong)[:5]))


def duration(
    promise: str, what: str, seconds: float, limit: float, *, size: int = 1, evidence: str = ""
) -> Measure:
    """Return a measure of seconds with an upper limit."""
    value = round(seconds, 2)
    return Measure(promise, what, value, limit=limit, unit="s", size=size, evidence=evidence)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The trials of one measure."""

    promise: str
    what: str
    unit: str
    relation: Relation
    limit: float
    worst: float
    median: float
    part: str  # the drill that ran the trials
    trials: int
    failures: int
    rounds: int  # runs of the drill; trials of one round share its faults, so they are dependent
    size: int
    bound: float  # on the rate of failing trials, 95 %, as if each were independent
    round_bound: float  # on the rate of rounds with a failing trial, 95 %
    evidence: list[str]


def summarise(measures: Iterable[Measure]) -> list[Summary]:
    """Return one summary for each promise, measure and drill, ordered by promise."""
    groups: dict[tuple[str, str, str], list[Measure]] = {}
    for measure in measures:
        groups.setdefault((measure.promise, measure.what, measure.part), []).append(measure)
    ordered = sorted(groups.items(), key=lambda entry: promise_order(entry[0][0]))
    return [_summary(group) for _, group in ordered]


def promise_order(name: str) -> tuple[str, int]:
    """Sort P2 before P10, and A12 after all promises."""
    letter, digits = name[:1], name[1:]
    return ("" if letter == "P" else letter, int(digits) if digits.isdigit() else 0)


def _summary(group: list[Measure]) -> Summary:
    first = group[0]
    values = sorted(measure.value for measure in group)
    failures = sum(not measure.passed for measure in group)
    rounds = {measure.rerun for measure in group}
    failed_rounds = {measure.rerun for measure in group if not measure.passed}
    return Summary(
        promise=first.promise,
        what=first.what,
        unit=first.unit,
        relation=first.relation,
        limit=first.limit,
        worst=values[0] if first.relation == ">=" else values[-1],
        median=values[len(values) // 2],
        part=first.part,
        trials=len(group),
        failures=failures,
        rounds=len(rounds),
        size=sum(measure.size for measure in group),
        bound=failure_rate_bound(failures, len(group)),
        round_bound=failure_rate_bound(len(failed_rounds), len(rounds)),
        evidence=[measure.evidence for measure in group if measure.evidence][:20],
    )


def failure_rate_bound(failures: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """Return the upper confidence bound on the failure rate.

    The one-sided bound of Clopper and Pearson (1934). Without a failure it is close to the rule of
    three, 3 / trials at 95 %; without a trial it is 1. Raises ValueError unless 0 <= failures <=
    trials.
    """
    if not 0 <= failures <= trials:
        raise ValueError("failures lie between 0 and the trials")
    if failures == trials:
        return 1.0
    low, high = failures / trials, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if probability_of_at_most(failures, trials, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def probability_of_at_most(failures: int, trials: int, rate: float) -> float:
    """Return the probability of at most `failures` when each trial fails at `rate`."""
    if rate <= 0:
        return 1.0
    if rate >= 1:
        return 1.0 if failures >= trials else 0.0
    hit, miss = math.log(rate), math.log1p(-rate)
    return math.fsum(
        math.exp(_log_choose(trials, k) + k * hit + (trials - k) * miss)
        for k in range(failures + 1)
    )


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


REQUIRED_ROUNDS = {"P1": (20, "storms"), "P2": (20, "storms"), "P4": (20, "storms")}
REQUIRED_ITEM_TRIALS = {
    "P3": (100, "kills"),
    "P7": (200, "cancelled jobs"),
    "P8": (100, "expired jobs"),
}
"""Trials that a promise requires in all, and the unit of a trial; one run may have fewer.

Measures of the promises in `REQUIRED_ITEM_TRIALS` have many trials a round; others have one."""

LOST_LEASE_WRITES = "writes accepted under a lease lost while its holder was stopped"
REQUIRED_LEASE_LOSSES = {"intake": (500, "lost leases")}
"""By role. Only the P9 measures of lost leases count lost leases; the other ones count rounds."""

MEDIAN = "median"
ABORTED_ROUNDS = "rounds that broke off before they were judged"
"""Measures whose names start with this count rounds."""

_HEAD = "| promise | measured | in | worst | pass | trials | failed | 95 % bound | looked at |"


def report_content(facts: Mapping[str, object], measures: Sequence[Measure]) -> dict[str, object]:
    """Return the description of the run, the summaries and every measure."""
    return {**facts, "summaries": summarise(measures), "measures": list(measures)}


def table(measures: Sequence[Measure]) -> str:
    """Return the summaries as a Markdown table."""
    rows = [f"| {' | '.join(_cells(summary))} |" for summary in summarise(measures)]
    return "\n".join([_HEAD, "| --- " * _HEAD.count(" | ") + "| --- |", *rows])


def violation_lines(measures: Sequence[Measure]) -> list[str]:
    """Return a line for each broken promise, with the command that repeats its round."""
    return [
        f"BROKEN {measure.promise} {measure.what}: {measure.value:g} {measure.evidence}\n"
        f"{'':10}  seed {measure.seed}, alone: {measure.rerun}"
        for measure in measures
        if measure.is_violation
    ]


def lease_loss_measure(role: str) -> str:
    """Return the name of the P9 measure that counts the lost leases of a role."""
    return f"{LOST_LEASE_WRITES}: {role}"


def number(value: float) -> str:
    """Format a number; "never" for an infinite one."""
    if not math.isfinite(value):
        return "never"
    return f"{value:,.0f}" if value == int(value) else f"{value:.2f}"


def _cells(summary: Summary) -> list[str]:
    unit = f" {summary.unit}" if summary.unit else ""
    relation = {"<=": "≤", ">=": "≥", "goal": "goal ≤", "report": ""}[summary.relation]
    goal = "reported" if summary.relation == "report" else f"{relation} {number(summary.limit)}"
    return [
        summary.promise,
        summary.what,
        summary.part,
        number(summary.worst) + unit,
        goal,
        _trials(summary),
        str(summary.failures),
        _bound(summary),
        f"{summary.size:,}",
    ]


def _trials(summary: Summary) -> str:
    text = str(summary.trials)
    if required := _required_trials(summary):
        text += f" of {required[0]} {required[1]}"
    if summary.rounds == summary.trials:
        return text
    return f"{text}, {summary.rounds} round{'s' * (summary.rounds > 1)}"


def _required_trials(summary: Summary) -> tuple[int, str] | None:
    """Return the required number of trials and their unit, if any is required."""
    if summary.what.startswith(LOST_LEASE_WRITES):
        required = {lease_loss_measure(role): n for role, n in REQUIRED_LEASE_LOSSES.items()}
        return required.get(summary.what)
    is_other = summary.relation == "report" or summary.part == OTHER_DRILLS
    if is_other or summary.what.startswith((MEDIAN, ABORTED_ROUNDS)):
        return None
    if summary.promise in REQUIRED_ITEM_TRIALS and summary.trials > summary.rounds:
        return REQUIRED_ITEM_TRIALS[summary.promise]
    return REQUIRED_ROUNDS.get(summary.promise)


def _bound(summary: Summary) -> str:
    if summary.relation == "report":
        return ""
    by_round = f" ({100 * summary.round_bound:.1f} % by round)"
    return f"{100 * summary.bound:.1f} %" + by_round * (summary.rounds < summary.trials)
