"""Checks and quotes ids that become parts of API paths, so that none names another route."""

from urllib.parse import quote

import typer


def validate_id(text: str | None) -> str | None:
    """Return an id unchanged, or None.

    Raises typer.BadParameter for an empty id or one of dots, which would name another route.
    """
    if text is not None and not text.strip("."):
        raise typer.BadParameter("this is not an id")
    return text


def quote_id(text: str) -> str:
    """Return an id quoted as one segment of a path."""
    return quote(text, safe="")
