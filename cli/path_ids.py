"""Ids from the command line as segments of an API path."""

from urllib.parse import quote

import typer


def require_id(text: str | None) -> str | None:
    """Return the id unchanged.

    Raises typer.BadParameter for an empty id and for one of dots only: it would change the route.
    """
    if text is not None and not text.strip("."):
        raise typer.BadParameter("this is not an id")
    return text


def path_segment(text: str) -> str:
    """Percent-encode an id as one path segment."""
    return quote(text, safe="")
