"""Routes a group of outcomes to the writer's handlers."""

from dataclasses import dataclass

from results.writer.copied_results import CopyWriter
from results.writer.item_writer import ItemWriter
from results.writer.job_closer import JobCloser
from results.writer.open_work import WorkStep
from results.writer.record_groups import Group
from topics.records.records import JobClose


@dataclass(frozen=True, slots=True)
class OutcomeRouter:
    """Writes outcomes at once; returns steps for closes and copies. Not thread-safe."""

    items: ItemWriter
    closes: JobCloser
    copies: CopyWriter

    def route(self, group: Group) -> list[WorkStep]:
        """Make the outcomes durable; return the further steps.

        Raises one of DATABASE_UNAVAILABLE.
        """
        if isinstance(group.exclusive, JobClose):
            return self.closes.close_steps(group.exclusive)
        if group.exclusive is not None:
            return self.copies.due_copy_steps(group.exclusive)
        return self.copies.copy_steps(group.jobs, self.items.write(group.jobs))
