"""Jobs of a simulated pool, and what became of their items."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from benchmarks.data.published_traces import Lengths
from core.urgency import PRIORITY_DEFAULT
from jobs.expansion.load_sums import JobLoad
from topics.records.records import Item, JobRef

POOL = "pool"
ENDPOINT = "/v1/chat/completions"
DAY_S = 86_400.0


@dataclass(slots=True)
class SimulatedJob:
    """A job; times are in seconds since the start."""

    number: int
    tenant: int
    lengths: Sequence[Lengths]
    created_s: float
    weight: int = 1
    deadline_s: float = DAY_S
    priority: int = PRIORITY_DEFAULT
    emitted: int = 0
    ended: int = 0  # items that have a row
    is_closed: bool = False  # expired
    settled_s: float | None = None  # when the last item had its row
    ends: list[tuple[float, Lengths]] = field(default_factory=list)  # of its items
    _mean_output: int = 0  # 0: not computed yet

    @property
    def ref(self) -> JobRef:
        """The reference in its records."""
        return JobRef(
            job_id=UUID(int=self.number + 1),
            day=1,
            tenant_id=UUID(int=self.tenant + 1),
            model="m",
            model_version="1",
            pool=POOL,
            endpoint=ENDPOINT,
            input_key="k",
            deadline_s=self.deadline_s,
            priority=self.priority,
            weight=self.weight,
        )

    def load(self, now_s: float) -> JobLoad:
        """Return the load that intake reads."""
        return JobLoad(
            UUID(int=self.number + 1),
            UUID(int=self.tenant + 1),
            POOL,
            len(self.lengths),
            self.emitted,
            self.ended,
            priority=self.priority,
            left_s=self.deadline_s - now_s,
            created_s=self.created_s,
            deadline_s=self.deadline_s,
        )

    def items(self, first: int, count: int) -> list[Item]:
        """Return items as intake estimates them: the output from the mean, within its limit."""
        if not self._mean_output:
            total = sum(one.output for one in self.lengths)
            self._mean_output = round(total / len(self.lengths))
        found = []
        for index in range(first, first + count):
            prompt, output = self.lengths[index]
            expected = min(output, self._mean_output)
            found.append(Item(index, "", b"", prompt + expected, output_token_count=expected))
        return found
