"""Goal: rules of style that no linter checks hold in every tracked file."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = PYPROJECT["tool"]["importlinter"]["root_packages"]
MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
BLOB_BYTES_MAX = 1_000_000

BANNED_NAMES = {"common", "utils", "util", "helpers", "helper", "manager", "base", "misc"}

# The brackets keep this file from matching its own patterns.
UNFINISHED = re.compile(r"\b(TO[D]O|FIX[M]E|X[X]X)\b")
MACHINE = re.compile(
    r"[p]ypi\.org|python[h]osted|registry\.[n]pmjs|[c]rates\.io|proxy\.[g]olang"
    r"|repo1?\.[m]aven|deb\.[d]ebian|/[w]ork/|/[f]arm/|/[r]oot/|/opt/[w]heels"
)


@cache
def tracked() -> tuple[Path, ...]:
    """Files that git tracks or would track, as paths below the root."""
    command = "git -c safe.directory=* ls-files -z --cached --others --exclude-standard"
    listing = subprocess.run(
        command.split(), cwd=ROOT, capture_output=True, text=True, check=True, timeout=20
    ).stdout
    return tuple(sorted(Path(n) for n in listing.split("\0") if n and (ROOT / n).is_file()))


def python_files() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".py"]


def texts() -> Iterator[tuple[Path, str]]:
    for path in tracked():
        content = (ROOT / path).read_bytes()
        if b"\0" not in content:
            yield path, content.decode()


def test_modules_are_at_most_400_lines() -> None:
    lengths = {path: len((ROOT / path).read_text().splitlines()) for path in python_files()}

    assert {path: n for path, n in lengths.items() if n > MODULE_LINES_MAX} == {}


def test_functions_are_at_most_70_lines() -> None:
    """Migrations are exempt: they list a schema and are never edited once merged."""
    long = {}
    for path in python_files():
        if path.is_relative_to("migrations/versions"):
            continue
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    long[f"{path}:{node.name}"] = lines

    assert long == {}


def test_a_package_init_holds_only_a_docstring() -> None:
    wrong = []
    for path in python_files():
        if path.name == "__init__.py":
            tree = ast.parse((ROOT / path).read_text())
            if len(tree.body) != 1 or not ast.get_docstring(tree):
                wrong.append(path)

    assert wrong == []


def test_no_module_has_a_generic_name() -> None:
    assert [path for path in python_files() if path.stem in BANNED_NAMES] == []


@pytest.mark.parametrize("name", PACKAGES)
def test_no_other_distribution_installs_a_package_of_this_name(name: str) -> None:
    """Names such as `api` and `results` are generic: no other distribution may install them."""
    assert name not in sys.stdlib_module_names
    assert set(packages_distributions().get(name, [])) <= {"millrace"}


def test_every_top_level_package_is_listed() -> None:
    packages = {path.parts[0] for path in python_files() if path.name == "__init__.py"}

    assert packages - {"benchmarks", "chaos", "tests"} == set(PACKAGES)


def test_every_entry_point_is_guarded() -> None:
    """vLLM starts child processes that import the main module of the role again."""
    mains = [path for path in python_files() if path.name == "__main__.py"]

    assert [m for m in mains if '__name__ == "__main__"' not in (ROOT / m).read_text()] == []


def test_only_storage_creates_database_engines() -> None:
    creators = re.compile(
        r"(sa|sqlalchemy)\.create_engine\(|from sqlalchemy.* import .*create_(async_)?engine"
    )
    packages = {
        path.parts[0]
        for path in python_files()
        if path.parts[0] in PACKAGES and creators.search((ROOT / path).read_text())
    }

    assert packages <= {"storage", "migrations"}


def test_no_file_has_an_open_todo() -> None:
    assert [str(path) for path, text in texts() if UNFINISHED.search(text)] == []


def test_no_file_names_a_package_registry_or_a_machine() -> None:
    found = {str(path): match.group() for path, text in texts() if (match := MACHINE.search(text))}

    assert found == {}


def test_no_file_is_larger_than_1_mb() -> None:
    assert [path for path in tracked() if (ROOT / path).stat().st_size > BLOB_BYTES_MAX] == []


def test_no_test_is_skipped() -> None:
    skips = re.compile(r"pytest\.(skip|importorskip|xfail)\(|mark\.(skip|skipif|xfail)\b")
    tests = [path for path in python_files() if path.parts[0] == "tests"]

    assert [path for path in tests if skips.search((ROOT / path).read_text())] == []
