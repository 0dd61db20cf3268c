"""The end of this process when one of its background tasks fails (`core.supervised_tasks`)."""

import signal

from core.errors import MillraceError


def end_process(_failure: MillraceError) -> None:
    """Stop this process like its supervisor does, with SIGTERM."""
    signal.raise_signal(signal.SIGTERM)
