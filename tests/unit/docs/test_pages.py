"""Goal: the pages agree with the code: topics, routes, codes, states, commands, decisions."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from typer.main import get_command

from api.app import ROUTERS
from cli.admin.topic_commands import retention_text
from cli.exits import ExitCode
from cli.main import app
from cli.stack.processes.role_children import MODULES
from core.states import NEXT_STATES, TERMINAL_STATES
from jobs.input.line_checks import ErrorCode
from registry.models import ENDPOINTS
from results.finaliser.output_lines import ERROR_MESSAGES
from tenancy import audit_log
from topics.records.catalogue import SHARED_TOPICS, Topic, pool_topics

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
READMES = [ROOT / "deploy/README.md", ROOT / "benchmarks/README.md"]
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *READMES])
ADR_PARTS = [
    "Motivation",
    "Decision",
    "Public interfaces",
    "Compatibility",
    "Test plan",
    "Rejected",
]
MERGED = re.compile(r"# \d+\. .+\n\nMerged into \[ADR (\d+)\]\(([^)]+)\)\.\n")
"""The whole text of a decision that a later one contains: its title and one line."""
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def topic_row(topic: Topic) -> str:
    cells = [
        f"`{topic.name}`",
        topic.key,
        str(topic.partition_count),
        retention_text(topic),
        ", ".join(topic.written_by),
        ", ".join(topic.read_by) or "subscribers",
    ]
    return f"| {' | '.join(cells)} |"


def test_the_data_flow_lists_the_catalogue() -> None:
    page = (DOCS / "data_flow.md").read_text()
    section = page.partition("## Topics")[2]
    rows = [line for line in section.splitlines() if line.startswith("| `")]

    assert rows == [topic_row(topic) for topic in (*SHARED_TOPICS, *pool_topics("<pool>"))]


def test_the_data_flow_names_modules_that_exist() -> None:
    named = re.findall(r"`(\w+/[\w/.]*)`", (DOCS / "data_flow.md").read_text())

    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def named_code(page: str) -> Iterator[tuple[list[str], str]]:
    """Yield each function and class that a line of `page` names, with the files of the line."""
    for line in page.splitlines():
        files = re.findall(r"`(\w+/[\w/]*\.py)`", line)
        for name in re.findall(r"`(?:\w+\.)?(\w+)\(\)`", line):
            yield files, rf"def {name}\b"
        for name in re.findall(r"`([A-Z]\w*[a-z]\w*)[.`]", line) if files else ():
            yield files, rf"class {name}\b"


def test_the_architecture_names_code_that_exists() -> None:
    page = (DOCS / "architecture.md").read_text()
    files = set(re.findall(r"`(\w+/[\w/]*\.py)`", page))
    texts = {name: (ROOT / name).read_text() for name in files if (ROOT / name).is_file()}

    assert files
    assert files - texts.keys() == set()
    wrong = [
        (names, pattern)
        for names, pattern in named_code(page)
        if not any(re.search(pattern, texts[name]) for name in names)
    ]
    assert wrong == []


def served() -> Iterator[tuple[str, str]]:
    for router in ROUTERS:
        for route in router.routes:
            assert isinstance(route, APIRoute)
            for method in route.methods:
                yield method, route.path.replace(":path", "")
    for path in ENDPOINTS:
        yield "POST", path


def test_the_pages_of_the_api_list_every_route() -> None:
    pages = "".join((DOCS / name).read_text() for name in ("api.md", "operators.md"))
    listed = re.findall(r"^\| (GET|POST|DELETE|PUT) \| `([^`]+)` \|", pages, re.M)

    assert sorted(listed) == sorted(served())


def test_the_api_page_explains_every_code_of_a_file() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", (DOCS / "api.md").read_text(), re.M))

    assert {code.value for code in ErrorCode} | ERROR_MESSAGES.keys() <= rows


def test_the_api_page_names_every_code_of_an_answer() -> None:
    page = (DOCS / "api.md").read_text()
    sources = [*(ROOT / "api").rglob("*.py"), ROOT / "jobs/errors.py"]
    codes = {
        code for path in sources for code in re.findall(r'\bcode="(\w+)"', path.read_text())
    } | set(re.findall(r'^    code = "(\w+)"', (ROOT / "jobs/errors.py").read_text(), re.M))

    assert {code for code in codes if f"`{code}`" not in page} == set()


def test_operations_list_roles_and_exit_codes() -> None:
    page = (DOCS / "operations.md").read_text()
    roles = re.findall(r"^\| `([\w-]+)` \| `millrace run \1` \|", page, re.M)
    codes = re.findall(r"^\| (\d+) \| ", page, re.M)

    assert sorted(roles) == sorted(MODULES)
    assert sorted(map(int, codes)) == sorted(code.value for code in ExitCode)


def test_the_page_on_controls_lists_every_state_and_where_it_leads() -> None:
    page = (DOCS / "job_controls.md").read_text()
    section = page.partition("## States")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| [^|]+ \|$", section, re.M)
    listed = {name: set(re.findall(r"`(\w+)`", after)) for name, after in rows}
    drawing = page.partition("```")[2].partition("```")[0]

    assert listed == {
        state.value: {target.value for target in after} for state, after in NEXT_STATES.items()
    }
    assert set(re.findall(r"[a-z_]+", drawing)) == {state.value for state in NEXT_STATES}
    assert all(f"{state} ──►" not in drawing for state in TERMINAL_STATES)


def test_the_audit_page_lists_every_action_and_the_form_of_a_hash() -> None:
    page = (DOCS / "audit_log.md").read_text()
    cells = re.findall(r"^\| (`[a-z_]+\.[^|]+) \|", page, re.M)
    named = [name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)]

    assert sorted(named) == sorted(action.value for action in audit_log.Action)
    assert f'["{audit_log._FORM}", hash before, tenant,' in page
    assert f"`{audit_log._FORM} TENANT`" in page


def commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Return every command below `group` with its full name."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def test_the_page_on_the_command_line_lists_every_command() -> None:
    listed = re.findall(r"^\| `(millrace [a-z -]+)` \|", (DOCS / "cli.md").read_text(), re.M)
    found = dict(commands(get_command(app), "millrace"))

    assert sorted(listed) == sorted(found)
    # What a function raises is said to whoever calls it, not to whoever types its name.
    assert [name for name, command in found.items() if "Raises" in command.help] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = [t for t in LINK.findall(page.read_text()) if not t.startswith("http")]

    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", sorted(DOCS.glob("adr/0*.md")), ids=lambda page: page.stem)
def test_a_decision_has_all_its_parts(page: Path) -> None:
    text = page.read_text()
    number = int(page.name[:4])

    assert f"]({page.name})" in (DOCS / "adr/README.md").read_text()
    assert text.startswith(f"# {number}. ")
    if merged := MERGED.fullmatch(text):
        into = page.parent / merged[2]
        assert int(merged[1]) == int(into.name[:4])
        assert not MERGED.fullmatch(into.read_text())
        return
    assert re.search(r"^Status: \w+, 20\d\d-\d\d-\d\d\. Touches: .+\.$", text, re.M | re.S)
    assert re.findall(r"^\*\*([\w ]+)\.\*\*", text, re.M) == ADR_PARTS


def test_decisions_that_the_code_cites_exist() -> None:
    cited = {
        int(number)
        for path in ROOT.glob("*/**/*.py")
        if ".venv" not in path.parts
        for number in re.findall(r"\bADR (\d+)\b", path.read_text())
    }

    assert cited <= {int(page.name[:4]) for page in DOCS.glob("adr/0*.md")}
