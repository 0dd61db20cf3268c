"""Ids of the command line as parts of the API's paths: none becomes another route."""

from urllib.parse import quote

import typer


def require_id(text: str | None) -> str | None:
    """Return an id as it was given, or None for none.

    Raises typer.BadParameter for one that is empty or of dots: it would name another route.
    """
    if text is not None and not text.strip("."):
        raise typer.BadParameter("this is no id")
    return text


def path_segment(text: str) -> str:
    """Return an id as one part of a path, whatever it holds."""
    return quote(text, safe="")
