"""What a group asks for: its outcomes at once, and steps for closes and copies."""

from dataclasses import dataclass

from results.writer.copied_results import CopyWriter
from results.writer.item_writer import ItemWriter
from results.writer.job_closer import JobCloser
from results.writer.open_work import WorkStep
from results.writer.record_groups import Group
from topics.records.records import Close


@dataclass(frozen=True, slots=True)
class OutcomeRouter:
    """Turns groups into rows; one thread uses it."""

    items: ItemWriter
    closes: JobCloser
    copies: CopyWriter

    def route(self, group: Group) -> list[WorkStep]:
        """Make its outcomes durable; return the steps that follow. Raises one of DATABASE_AWAY."""
        if isinstance(group.alone, Close):
            return self.closes.close_steps(group.alone)
        if group.alone is not None:
            return self.copies.due_copy_steps(group.alone)
        return self.copies.copy_steps(group.jobs, self.items.write(group.jobs))
