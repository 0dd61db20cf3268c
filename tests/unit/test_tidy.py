"""Goal: the house style that no other tool checks holds in every tracked file."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "api",
    "autoscaler",
    "batcher",
    "cli",
    "core",
    "gpu_consumers",
    "jobs",
    "migrations",
    "registry",
    "results",
    "storage",
    "tenancy",
    "topics",
)
MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
BLOB_BYTES_MAX = 1_000_000

BANNED_NAMES = {"common", "utils", "util", "helpers", "helper", "manager", "base", "misc"}

# Written so that this file does not hold what it looks for.
UNFINISHED = re.compile(r"\b(TO[D]O|FIX[M]E|X[X]X)\b")
MACHINE = re.compile(
    r"[p]ypi\.org|python[h]osted|registry\.[n]pmjs|[c]rates\.io|proxy\.[g]olang"
    r"|repo1?\.[m]aven|deb\.[d]ebian|/[w]ork/|/[f]arm/|/[r]oot/|/opt/[w]heels"
)


@cache
def tracked() -> tuple[Path, ...]:
    """Files that git tracks or would track, as paths below the root."""
    listing = subprocess.run(
        [
            "git",
            "-c",
            "safe.directory=*",
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    ).stdout
    return tuple(sorted(Path(n) for n in listing.split("\0") if n and (ROOT / n).is_file()))


def python_files() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".py"]


def texts() -> Iterator[tuple[Path, str]]:
    for path in tracked():
        content = (ROOT / path).read_bytes()
        if b"\0" not in content:
            yield path, content.decode()


def test_modules_are_short() -> None:
    lengths = {path: len((ROOT / path).read_text().splitlines()) for path in python_files()}

    assert {path: n for path, n in lengths.items() if n > MODULE_LINES_MAX} == {}


def test_functions_fit_a_screen() -> None:
    """A revision is exempt: it lists what a schema holds, and is never edited once merged."""
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


def test_a_package_file_holds_its_docstring_only() -> None:
    wrong = []
    for path in python_files():
        if path.name == "__init__.py":
            tree = ast.parse((ROOT / path).read_text())
            if len(tree.body) != 1 or not ast.get_docstring(tree):
                wrong.append(path)

    assert wrong == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [path for path in python_files() if path.stem in BANNED_NAMES] == []


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_name_is_ours_alone(name: str) -> None:
    """`api`, `results` and the like are generic: prove that nobody else installs one."""
    assert name not in sys.stdlib_module_names
    assert set(packages_distributions().get(name, [])) <= {"millrace"}


def test_every_room_is_packaged() -> None:
    rooms = {path.parts[0] for path in python_files() if path.name == "__init__.py"}

    assert rooms - {"benchmarks", "chaos", "tests"} == set(PACKAGES)


def test_an_entry_point_is_guarded() -> None:
    """vLLM spawns children that import the role's main module again."""
    mains = [path for path in python_files() if path.name == "__main__.py"]

    assert [m for m in mains if '__name__ == "__main__"' not in (ROOT / m).read_text()] == []


def test_engines_are_created_in_storage_alone() -> None:
    creators = re.compile(
        r"(sa|sqlalchemy)\.create_engine\(|from sqlalchemy.* import .*create_(async_)?engine"
    )
    rooms = {
        path.parts[0]
        for path in python_files()
        if path.parts[0] in PACKAGES and creators.search((ROOT / path).read_text())
    }

    assert rooms <= {"storage", "migrations"}


def test_nothing_is_unfinished() -> None:
    assert [str(path) for path, text in texts() if UNFINISHED.search(text)] == []


def test_no_file_names_a_registry_or_a_machine() -> None:
    found = {str(path): match.group() for path, text in texts() if (match := MACHINE.search(text))}

    assert found == {}


def test_no_file_is_a_blob() -> None:
    assert [path for path in tracked() if (ROOT / path).stat().st_size > BLOB_BYTES_MAX] == []


def test_no_test_is_skipped() -> None:
    skips = re.compile(r"pytest\.(skip|importorskip|xfail)\(|mark\.(skip|skipif|xfail)\b")
    tests = [path for path in python_files() if path.parts[0] == "tests"]

    assert [path for path in tests if skips.search((ROOT / path).read_text())] == []
