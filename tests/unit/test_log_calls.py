"""Goal: no log call gives a field that `logging` keeps for itself: it would raise KeyError."""

import ast
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESERVED = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
PACKAGES = [
    path.parent for path in sorted(ROOT.glob("*/__init__.py")) if path.parent.name != "tests"
]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def reserved_fields(source: str) -> list[str]:
    """Name each reserved key of a dict that is given as `extra`, itself or by a variable."""
    tree = ast.parse(source)
    scopes = [tree, *(node for node in ast.walk(tree) if isinstance(node, Function))]
    found = set()
    for scope in scopes:
        for node in within(scope):
            if isinstance(node, ast.Call):
                for keyword in node.keywords:
                    if keyword.arg == "extra":
                        found |= {(k.lineno, k.value) for k in keys(keyword.value, scope)}
    return [f"{line}: {key}" for line, key in sorted(found) if key in RESERVED]


def keys(value: ast.expr, scope: ast.AST) -> Iterator[ast.Constant]:
    """Yield the keys of a dict, of those that it takes in, and of a variable of the scope."""
    if isinstance(value, ast.Dict):
        for key, inner in zip(value.keys, value.values, strict=True):
            if key is None:
                yield from keys(inner, scope)
            elif isinstance(key, ast.Constant):
                yield key
    elif isinstance(value, ast.BinOp):
        yield from keys(value.left, scope)
        yield from keys(value.right, scope)
    elif isinstance(value, ast.Name):
        for given in assigned(value.id, scope):
            yield from keys(given, scope)
        yield from stored(value.id, scope)


def assigned(name: str, scope: ast.AST) -> Iterator[ast.expr]:
    """Yield what a variable is set to, but for what names the variable itself."""
    for node in within(scope):
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            targets = [node.target]
        else:
            continue
        value = node.value
        names = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)} if value else {name}
        if value and name not in names and any(is_named(target, name) for target in targets):
            yield value


def stored(name: str, scope: ast.AST) -> Iterator[ast.Constant]:
    """Yield the keys of `name[key] = …`."""
    for node in within(scope):
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.slice, ast.Constant)
            and is_named(node.value, name)
        ):
            yield node.slice


def within(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope, but for those of the functions in it."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, Function):
            yield from within(node)


def is_named(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


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
