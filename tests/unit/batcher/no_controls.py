"""Job controls without any state."""

from topics.records.records import JobControl, JobRef


class NoControls:
    """No job was changed since its records were emitted."""

    def newer(self, job: JobRef) -> JobControl | None:
        return None
