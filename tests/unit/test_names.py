"""Goal: names of product code are unambiguous, and the glossary names code that exists.

docs/glossary.md is the list of words. Its first table gives `word | meaning | identifier | source`;
its second table gives words that are not used and their replacements.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from tests.unit.test_tidy import PACKAGES

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "docs/glossary.md").read_text()
CONVENTIONAL = {"__init__", "__main__", "settings", "metrics", "tables", "errors", "wiring"}
"""Module names that mean the same in every package."""

SAME_SUBJECT = {"files", "idempotency", "keys", "outbox", "periodic", "response_cache"}
"""Modules that share a name because they handle the same thing: a table and its transactions, the
keys that sign models and their rows, the periodic tasks of a role, the response cache of the API
and of the tenants' settings."""

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def modules() -> dict[Path, ast.Module]:
    """Parse every module of product code; keys are paths below the root."""
    return {
        path.relative_to(ROOT): ast.parse(path.read_text())
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if not path.is_relative_to(ROOT / "migrations/versions")
    }


def definitions() -> Iterator[tuple[Path, Definition]]:
    for path, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, Definition):
                yield path, node


def rows(section: str) -> list[list[str]]:
    """Return the cells of each row of the table under a heading of the glossary."""
    _, _, rest = GLOSSARY.partition(f"## {section}\n")
    text, _, _ = rest.partition("\n## ")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_no_two_public_classes_share_a_name() -> None:
    homes = defaultdict(set)
    for path, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add(str(path))

    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_a_module_name_stands_for_one_thing() -> None:
    homes = defaultdict(set)
    for path in modules():
        if path.stem not in CONVENTIONAL | SAME_SUBJECT:
            homes[path.stem].add(str(path))

    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_each_shared_module_name_is_still_shared() -> None:
    stems = [path.stem for path in modules()]

    assert {stem for stem in SAME_SUBJECT if stems.count(stem) < 2} == set()


def test_the_glossary_names_code_that_exists() -> None:
    known = {node.name for _, node in definitions()}
    known |= {".".join(path.with_suffix("").parts) for path in modules()}
    known |= {".".join(path.parts[:-1]) for path in modules()}
    for tree in modules().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                known |= {target.id for target in targets if isinstance(target, ast.Name)}
    table = rows("Words")
    named = [name for row in table for name in re.findall(r"`([^`]+)`", row[2])]

    assert len(table) > 50
    assert [name for name in named if name.rpartition(":")[2] not in known] == []
    for name in named:
        module, separator, identifier = name.rpartition(":")
        if separator:
            path = Path(module.replace(".", "/") + ".py")
            assert path in modules(), name
            assert re.search(rf"\b{identifier}\b", (ROOT / path).read_text()), name


def test_no_word_that_the_glossary_bans_names_code() -> None:
    """A banned word is no part of the name of a class, function or module, public or private."""
    banned = {word for row in rows("Words not used") for word in re.findall(r"`([^`]+)`", row[0])}
    used = defaultdict(set)
    for path, node in definitions():
        for word in words_of(node.name) & banned:
            used[word].add(f"{path}:{node.name}")
    for path in modules():
        for word in words_of(path.stem) & banned:
            used[word].add(str(path))

    assert banned
    assert used == {}


def test_no_function_is_named_with_a_bare_verb() -> None:
    _, _, section = GLOSSARY.partition("## Bare verbs\n")
    bare = set(re.findall(r"`(\w+)`", section.partition("whole\nname:")[2]))

    assert {"take", "look"} <= bare
    assert [f"{path}:{node.name}" for path, node in definitions() if node.name in bare] == []


def words_of(name: str) -> set[str]:
    """Split a CamelCase or snake_case name into words and pairs of words."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    words = snake.strip("_").split("_")
    return {*words, *("_".join(pair) for pair in pairwise(words))}
