"""Folders in which stacks keep their data while something is measured."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def work_folder(
    name: str, *, parent: Path | None, keep: bool, note: Callable[[str], None]
) -> Iterator[Path]:
    """Make a folder below `parent`, or where the system has its own, and remove it unless kept."""
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f"millrace-{name}-", dir=parent))
    work.chmod(0o755)  # the user that Postgres runs as must pass
    try:
        yield work
    finally:
        if keep:
            note(f"kept {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
