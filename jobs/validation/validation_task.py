"""The inputs of a validation, apart from the bytes of the files. They can be sent to a process."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from core.bodies.body_limit_settings import BodyLimits
from jobs.input.line_reader import custom_id_of, decode_validated, input_lines
from jobs.settings import LINE_BYTES_CEILING
from jobs.validation.file_validation import ExistingItems, ValidationResult, validate_file
from jobs.validation.model_rule import FindModel, PinnedModels

ReadFile: TypeAlias = Callable[[int], Iterable[bytes]]
"""Reads a file of the job from its start, block by block, given its number from 0."""


@dataclass(frozen=True, slots=True)
class ExistingFiles:
    """The files of a job to which another one is appended."""

    models: PinnedModels
    item_count: int
    first_indexes: tuple[int, ...]
    """Index of the first item of each file."""


@dataclass(frozen=True, slots=True)
class ValidationTask:
    """What to check in the last file of a job."""

    endpoint: str
    items_max: int
    line_bytes_max: int
    body_limits: BodyLimits
    existing: ExistingFiles | None = None
    orders_items: bool = False  # by shared prefixes of their prompts
    allows_several_models: bool = True  # names, or an adapter

    def validate(self, read_file: ReadFile, find_model: FindModel) -> ValidationResult:
        """Return the result for the last file. Raises InputChangedError, and errors of reading."""
        existing = self.existing
        number = len(existing.first_indexes) if existing else 0
        return validate_file(
            lambda: input_lines(read_file(number), line_bytes_max=self.line_bytes_max),
            endpoint=self.endpoint,
            items_max=self.items_max,
            line_bytes_max=self.line_bytes_max,
            find_model=find_model,
            existing=_existing_items(existing, read_file) if existing else None,
            body_limits=self.body_limits,
            orders_items=self.orders_items,
            allows_several_models=self.allows_several_models,
        )


def _existing_items(files: ExistingFiles, read_file: ReadFile) -> ExistingItems:
    def read_ids() -> Iterator[str]:
        for number, first_index in enumerate(files.first_indexes):
            # The line limit may have been higher when these files were validated.
            lines = input_lines(read_file(number), line_bytes_max=LINE_BYTES_CEILING)
            for index, (_, _, line) in enumerate(lines, first_index):
                yield decode_validated(custom_id_of, line, index)

    return ExistingItems(files.models, files.item_count, read_ids)
