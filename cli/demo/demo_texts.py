"""Input texts of the demo: the docstrings of Python's standard library.

Its sources are parsed and not imported.
"""

import ast
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

TEXT_CHARS_MAX = 480
"""At this length the densest docstring has 175 tokens; the model reads 256."""

_EXCLUDED = frozenset(
    {"test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip", "pydoc_data"}
    | {"site-packages", "dist-packages"}
)
_DefinitionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class DocumentedName:
    """A public function, class or method of the library with its docstring."""

    name: str  # dotted, unique
    text: str  # the name and the beginning of its docstring


def standard_library() -> Path:
    """Return the folder of this Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def collect_docstrings(library: Path, count_max: int) -> list[DocumentedName]:
    """Return at most `count_max` documented names below `library`, an even sample by name."""
    found: dict[str, DocumentedName] = {}
    for path in sorted(library.rglob("*.py")):
        inside = path.relative_to(library)
        module = module_name(inside)
        if not _EXCLUDED.isdisjoint(inside.parts) or "._" in f".{module}":
            continue
        for documented in parse_docstrings(_source(path), module):
            found.setdefault(documented.name, documented)
    return sample_evenly([found[name] for name in sorted(found)], count_max)


def parse_docstrings(source: bytes, module: str) -> Iterator[DocumentedName]:
    """Yield the public names of a module that have a docstring, in source order.

    Yields nothing for a source that this Python cannot parse.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    yield from _definitions(tree.body, module)


def module_name(path: Path) -> str:
    """Return the dotted name of a module from its path below the library.

    The Python version of a C module, such as `_pydatetime`, gets the public name.
    """
    parts = path.with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return name.removeprefix("_py")


def sample_evenly(documented: Sequence[DocumentedName], count_max: int) -> list[DocumentedName]:
    """Return an even sample of at most `count_max`, in order."""
    count = min(len(documented), count_max)
    return [documented[index * len(documented) // count] for index in range(count)]


def _definitions(body: Sequence[ast.stmt], parent: str) -> Iterator[DocumentedName]:
    for node in body:
        if not isinstance(node, _DefinitionNode) or node.name.startswith("_"):
            continue
        name = f"{parent}.{node.name}"
        if prose := _prose(ast.get_docstring(node) or ""):
            yield DocumentedName(name, f"{name}: {prose}"[:TEXT_CHARS_MAX])
        if isinstance(node, ast.ClassDef):
            yield from _definitions(node.body, name)


def _prose(docstring: str) -> str:
    """Return the docstring without examples and without words of punctuation only."""
    before_examples = docstring.partition(">>>")[0]
    return " ".join(word for word in before_examples.split() if any(c.isalnum() for c in word))


def _source(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
