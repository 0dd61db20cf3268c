"""Goal: the README's way to a cluster is whole, and its lists are those of the tree."""

import re
from pathlib import Path

import pytest

from cli.stack.processes.role_children import MODULES
from topics.records.catalogue import JOB_CLASSES

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()
OPERATIONS = (ROOT / "docs/operations.md").read_text()


def section(page: str, title: str) -> str:
    return page.partition(f"## {title}")[2].partition("\n## ")[0]


def test_the_start_of_a_cluster_names_every_role_and_a_key() -> None:
    start = section(README, "A real cluster and GPUs").partition("$ export")[2]

    assert [role for role in MODULES if not re.search(rf"\b{role}\b", start)] == []
    assert "millrace keys create" in start
    assert "MILLRACE_API_HOST=" in start


@pytest.mark.parametrize(
    "start",
    [
        section(README, "A real cluster and GPUs"),
        section(OPERATIONS, "First start against outside services"),
    ],
    ids=["README", "operations"],
)
def test_a_start_has_a_batcher_of_each_class_and_the_key_of_the_webhooks(start: str) -> None:
    for job_class in JOB_CLASSES:
        assert re.search(rf"(JOB_CLASS=|with `){job_class}\b", start)
    assert "MILLRACE_WEBHOOKS_SECRET_KEY" in start


def test_a_machine_with_a_gpu_is_installed_from_the_lock_of_its_image() -> None:
    start = section(README, "A real cluster and GPUs")
    (lock,) = re.findall(r"^\$ pip install --no-deps --require-hashes -r (\S+)$", start, re.M)
    pins = (ROOT / lock).read_text()

    assert lock in (ROOT / "deploy/Dockerfile").read_text()
    assert re.search(r"^vllm==", pins, re.M)
    # The project itself is built with what the lock names, and nothing else is installed.
    assert "$ pip install --no-deps --no-build-isolation -e ." in start
    assert re.search(r"^setuptools==", pins, re.M)
    assert start.index("-e .") < start.index("millrace run gpu-consumer")


def test_every_verb_of_make_is_listed() -> None:
    verbs = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.M)
    listed = section(README, "Development").partition("lists the verbs:")[2].partition(".")[0]

    assert sorted(re.findall(r"`([a-z-]+)`", listed)) == sorted(set(verbs) - {"help"})


def test_setup_asks_for_the_versions_that_the_package_takes() -> None:
    package, verbs = ((ROOT / name).read_text() for name in ("pyproject.toml", "Makefile"))
    (bounds,) = re.findall(r'^requires-python = ">=3\.(\d+),<3\.(\d+)"$', package, re.M)

    assert "(3, {}) <= sys.version_info[:2] < (3, {})".format(*bounds) in verbs
    for minor in range(*map(int, bounds)):
        assert f"3.{minor}" in section(README, "Two commands").partition("```")[0]


def test_every_folder_is_listed() -> None:
    found = [path for name in ("__init__.py", "README.md") for path in ROOT.glob(f"*/{name}")]
    folders = {path.parent.name for path in found if not path.parent.name.startswith(".")}
    rows = re.findall(r"^\| (`\w+/`[^|]*) \|", section(README, "Development"), re.M)
    listed = [name for row in rows for name in re.findall(r"`(\w+)/`", row)]

    assert len(listed) == len(set(listed))
    assert folders <= set(listed)
    assert [name for name in listed if not (ROOT / name).is_dir()] == []
