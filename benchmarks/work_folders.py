"""Work folders of stacks under measurement."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def work_folder(
    name: str, *, parent: Path | None, keep: bool, note: Callable[[str], None]
) -> Iterator[Path]:
    """Create a folder below `parent` or the system's temporary folder; remove it unless kept."""
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f"millrace-{name}-", dir=parent))
    work.chmod(0o755)  # Postgres runs as another user
    try:
        yield work
    finally:
        if keep:
            note(f"kept {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
