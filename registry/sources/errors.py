"""Errors of the sources of models."""

from core.errors import Disposition, MillraceError


class ModelSourceError(MillraceError):
    """The model cannot be read from its source."""

    code = "model_source_refused"
    disposition = Disposition.REJECT
