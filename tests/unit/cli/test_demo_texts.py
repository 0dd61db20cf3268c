"""Goal: the demo's texts are public, unique and short, and no module is imported for them."""

from pathlib import Path

from cli.demo.demo_texts import (
    TEXT_CHARS_MAX,
    DocumentedName,
    collect_docstrings,
    module_name,
    parse_docstrings,
    sample_evenly,
    standard_library,
)

SOURCE = b'''
"""Module."""
raise SystemExit("parsed, never run")

def parse(text):
    """Parse
    a text.

    >>> parse("x")
    """

async def wait():
    """Wait."""
    def inner():
        """Not reachable by a name."""

class Reader:
    """Reads. +-----+"""
    def read(self):
        """Read it."""
    def close(self):
        pass
    def _hidden(self):
        """Private."""

class _Hidden:
    """Private."""
    def shown(self):
        """Behind a private name."""

def drawing():
    """+---+ | |"""
'''


def test_public_docstrings_are_found_in_source_order() -> None:
    assert list(parse_docstrings(SOURCE, "io")) == [
        DocumentedName("io.parse", "io.parse: Parse a text."),
        DocumentedName("io.wait", "io.wait: Wait."),
        DocumentedName("io.Reader", "io.Reader: Reads."),
        DocumentedName("io.Reader.read", "io.Reader.read: Read it."),
    ]


def test_invalid_source_has_no_docstrings() -> None:
    assert list(parse_docstrings(b"def (", "bad")) == []
    assert list(parse_docstrings(b"\0", "bad")) == []


def test_module_names_are_public() -> None:
    assert module_name(Path("email/message.py")) == "email.message"
    assert module_name(Path("json/__init__.py")) == "json"
    assert module_name(Path("_pydatetime.py")) == "datetime"


def test_a_sample_is_even() -> None:
    all_of_them = [DocumentedName(f"{n:03}", "") for n in range(100)]

    assert [d.name for d in sample_evenly(all_of_them, 4)] == ["000", "025", "050", "075"]
    assert sample_evenly(all_of_them, 1000) == all_of_them
    assert sample_evenly([], 10) == []


def test_standard_library_has_thousands_of_docstrings() -> None:
    found = collect_docstrings(standard_library(), 4000)
    names = [documented.name for documented in found]

    assert len(set(names)) == len(names) == 4000
    assert names == sorted(names)
    assert max(len(documented.text) for documented in found) <= TEXT_CHARS_MAX
    assert not [name for name in names if name.startswith(("test.", "idlelib.", "_"))]
