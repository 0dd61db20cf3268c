"""Goal: no log call gives a field that `logging` keeps for itself: it would raise KeyError."""

import ast
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import pytest

ROOT = Path(__file__).parents[2]
RESERVED = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
PACKAGES = [
    path.parent for path in sorted(ROOT.glob("*/__init__.py")) if path.parent.name != "tests"
]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def reserved_fields(source: str) -> list[str]:
    """Name each reserved key of a dict that is given as `extra`, itself or by variables."""
    tree = ast.parse(source)
    found = set()
    for scope in (tree, *(node for node in ast.walk(tree) if isinstance(node, Function))):
        nodes = list(within(scope))
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        given = [word.value for call in calls for word in call.keywords if word.arg == "extra"]
        for value in given:  # grows by the values of variables
            names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
            given += [set_ for node in nodes for set_ in assigned(node, names) if set_ not in given]
            keys = [
                key for node in ast.walk(value) if isinstance(node, ast.Dict) for key in node.keys
            ]
            keys += [node.slice for node in nodes if is_stored(node, names)]
            found |= {(k.lineno, k.value) for k in keys if isinstance(k, ast.Constant)}
    return [f"{line}: {key}" for line, key in sorted(found) if key in RESERVED]


def assigned(node: ast.AST, names: set[str]) -> Iterator[ast.expr]:
    """Yield what a statement sets one of the variables to."""
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id in names for target in targets):
            yield node.value


def is_stored(node: ast.AST, names: set[str]) -> TypeGuard[ast.Subscript]:
    """Whether this is `name[key] = …` for one of the variables."""
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id in names
    )


def within(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope, but for those of the functions in it."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, Function):
            yield from within(node)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("log.info('x', extra={'message': 1})", ["1: message"]),
        ("log.info('x', extra={'job': 1})", []),
        ("def f():\n  facts = {'name': 1}\n  log.info('x', extra=facts)", ["2: name"]),
        ("def f():\n  facts = {'args': 1}\n  log.info('', extra={**facts})", ["2: args"]),
        ("def f():\n  facts = {}\n  facts['msg'] = 1\n  log.info('x', extra=facts)", ["3: msg"]),
        ("def f():\n  a: dict = {}\n  a |= {'args': 1}\n  log.info('', extra=a)", ["3: args"]),
        ("def f():\n  facts = {'name': 1}\ndef g(facts):\n  log.info('x', extra=facts)", []),
    ],
)  # fmt: skip
def test_the_search_finds_them(source: str, found: list[str]) -> None:
    assert reserved_fields(source) == found


def test_no_log_call_gives_a_reserved_field() -> None:
    paths = [path for package in PACKAGES for path in package.rglob("*.py")]
    found = {
        path.relative_to(ROOT).as_posix(): fields
        for path in paths
        if (fields := reserved_fields(path.read_text()))
    }

    assert len(paths) > 300
    assert found == {}
