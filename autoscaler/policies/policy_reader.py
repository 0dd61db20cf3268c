"""Reads a scaling policy file: bytes in, policies or a list of problems out. Pure.

Each problem is one line that names the file, the table and the field. The fields are checked first,
all of them; only when each of them is valid are they compared with each other.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from autoscaler.actuators.actuator_tables import ACTUATORS_MAX, TABLES, ActuatorTable
from autoscaler.policies.policies import Policies
from autoscaler.policies.policy_checks import (
    FieldProblem,
    check_actuators,
    check_gpu_type,
    check_policy,
    check_pool_actuator,
    check_role,
    check_role_actuator,
)
from autoscaler.policies.pool_policy import (
    GPU_TYPES_MAX,
    NAME_PATTERN,
    POOL_PATTERN,
    POOLS_MAX,
    ROLE_PATTERN,
    GpuType,
    PoolPolicy,
    RolePolicy,
    ScalingFile,
)
from autoscaler.policy.role_need import Role
from core.errors import Disposition, MillraceError

FILE_BYTES_MAX: Final = 1024 * 1024
LINE_BYTES_MAX: Final = 1024
"""Longest line: tomllib takes quadratic time for a key of many parts (`a.a.a`)."""

PROBLEMS_MAX: Final = 100
"""Problems that are reported of one file."""

_NAME_CHARS_SHOWN: Final = 100
_LINE_CHARS_SHOWN: Final = 500
_PATH: Final = re.compile(r"(?P<text>.*) - at `(?:key` in `)?\$(?P<path>.*)`", re.DOTALL)
_NAME_RULE: Final = (
    "A name has lower-case letters, digits, '.', '_' and '-', begins with a letter or digit and "
    "has at most 63 characters; that of a pool has at most 100, and '*' may follow."
)
_ROLE_RULE: Final = f"The roles are {', '.join(Role)}."
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


class InvalidPoliciesError(MillraceError):
    """The scaling policy file is not valid."""

    code = "policies_refused"
    disposition = Disposition.REJECT

    def __init__(self, problems: Iterable[str]) -> None:
        """`problems` are sentences of one line, for the operator."""
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


def read_policies(data: bytes, source: str) -> Policies:
    """Return the policies in a file called `source`. Raises InvalidPoliciesError.

    A field that the table of a pool leaves out comes from `defaults`, and else from PoolPolicy. A
    field is replaced whole: lists and tables are not merged.
    """
    report = _Report(source)
    document = _parse_document(data, report)
    report.add("", _unknown_tables(document))
    types = _read_tables(document, "gpu_types", NAME_PATTERN, GPU_TYPES_MAX, report)
    pools = _read_tables(document, "pools", POOL_PATTERN, POOLS_MAX, report)
    type_fields = {name: _read_fields(GpuType, path, raw, report) for name, path, raw in types}
    roles = _read_tables(document, "roles", ROLE_PATTERN, len(Role), report)
    role_fields = {name: _read_fields(RolePolicy, path, raw, report) for name, path, raw in roles}
    defaults = _read_fields(PoolPolicy, "[defaults]", document.get("defaults", {}), report)
    pool_fields = {name: _read_fields(PoolPolicy, path, raw, report) for name, path, raw in pools}
    actuators = _read_actuators(document, report)
    report.raise_problems()

    policies = Policies(
        {name: GpuType(**fields) for name, fields in type_fields.items()},
        PoolPolicy(**defaults),
        {name: PoolPolicy(**{**defaults, **fields}) for name, fields in pool_fields.items()},
        roles={name: RolePolicy(**fields) for name, fields in role_fields.items()},
        actuators=actuators,
    )
    _compare_fields(policies, report)
    report.raise_problems()
    return policies


class _Report:
    """The problems of a file, one line each."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._lines: list[str] = []

    def add(self, table: str, problems: Iterable[FieldProblem]) -> None:
        """Add problems of a table. Raises InvalidPoliciesError when there are PROBLEMS_MAX."""
        for field, text in problems:
            place = " ".join(part for part in (table, field) if part)
            line = ": ".join(part for part in (self._source, place, text) if part)
            self._lines.append(_one_line(line, _LINE_CHARS_SHOWN))
            if len(self._lines) >= PROBLEMS_MAX:
                self.raise_problems()

    def raise_problems(self) -> None:
        """Raise InvalidPoliciesError if there are problems."""
        if self._lines:
            raise InvalidPoliciesError(self._lines)


def _parse_document(data: bytes, report: _Report) -> dict[str, Any]:
    problem = None
    if len(data) > FILE_BYTES_MAX:
        problem = "The file is larger than 1 MiB."
    elif any(len(line) > LINE_BYTES_MAX for line in data.split(b"\n")):
        problem = f"A line is longer than {LINE_BYTES_MAX} bytes."
    else:
        try:
            if document := tomllib.loads(data.decode()):
                return document
            # A file that is written in place is empty for a moment: that must not reset all pools.
            problem = "The file has no table."
        except UnicodeDecodeError:
            problem = "The file is not UTF-8."
        except RecursionError:
            problem = "Values are nested too deeply."
        except ValueError as error:  # TOMLDecodeError is one; so is a number of too many digits
            problem = f"The file is not TOML: {error}."
    report.add("", [("", problem)])
    report.raise_problems()
    raise AssertionError(problem)


def _unknown_tables(document: dict[str, Any]) -> Iterable[FieldProblem]:
    for name in document:
        if name not in ScalingFile.__struct_fields__:
            tables = ", ".join(ScalingFile.__struct_fields__)
            yield f"[{_shown(name)}]", f"The tables of a file are {tables}."


def _read_tables(
    document: dict[str, Any], group: str, pattern: str, count_max: int, report: _Report
) -> list[tuple[str, str, Any]]:
    """Return name, path and value of each table in a group whose name is valid."""
    tables = document.get(group, {})
    if not isinstance(tables, dict):
        report.add(f"[{group}]", [("", "Expected a table of tables.")])
        return []
    if len(tables) > count_max:
        report.add(f"[{group}]", [("", f"It has {len(tables)} tables; the limit is {count_max}.")])
        return []
    found = []
    for name, raw in tables.items():
        path = f"[{group}.{_shown(name)}]"
        if re.search(pattern, name):
            found.append((name, path, raw))
        else:
            report.add(path, [("", _ROLE_RULE if group == "roles" else _NAME_RULE)])
    return found


def _read_actuators(document: dict[str, Any], report: _Report) -> dict[str, ActuatorTable]:
    """Return the actuators whose tables are valid. Reports what is wrong with the others."""
    found = {}
    for name, path, raw in _read_tables(document, "actuators", NAME_PATTERN, ACTUATORS_MAX, report):
        fields = dict(raw) if isinstance(raw, dict) else {}
        kind = fields.pop("kind", None)
        if not isinstance(kind, str) or kind not in TABLES:
            report.add(path, [("kind", f"The kinds are {', '.join(TABLES)}.")])
            continue
        values = _read_fields(TABLES[kind], path, fields, report)
        try:
            found[name] = msgspec.convert({"kind": kind, **values}, ActuatorTable)
        except msgspec.ValidationError:  # a field is missing, which is said above
            continue
    return found


def _read_fields(
    struct: type[msgspec.Struct], path: str, raw: Any, report: _Report
) -> dict[str, Any]:
    """Return the values that a table gives to fields of a struct. Reports what is wrong."""
    if not isinstance(raw, dict):
        report.add(path, [("", "Expected a table.")])
        return {}
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    values = {}
    for name, value in raw.items():
        if name not in fields:
            report.add(path, [(_shown(name), f"The table of {_kind_of(path)} has no such field.")])
            continue
        try:
            values[name] = msgspec.convert(value, fields[name].type)
        except (msgspec.ValidationError, RecursionError) as error:
            report.add(path, [_field_problem(name, str(error))])
    for name, field in fields.items():
        if field.required and name not in raw:
            report.add(path, [(name, "The field is required.")])
    return values


def _compare_fields(policies: Policies, report: _Report) -> None:
    for name, gpu_type in policies.gpu_types.items():
        report.add(f"[gpu_types.{_shown(name)}]", check_gpu_type(gpu_type))
    report.add("[actuators]", check_actuators(policies.actuators))
    of_defaults = list(_check_pool(policies.defaults, policies))
    report.add("[defaults]", of_defaults)
    for name, policy in policies.pools.items():
        problems = _check_pool(policy, policies)
        # A problem of the defaults is reported once, not for each pool that gets them.
        report.add(f"[pools.{_shown(name)}]", (one for one in problems if one not in of_defaults))
    for name, role in policies.roles.items():
        report.add(f"[roles.{name}]", check_role(name, role))
        report.add(f"[roles.{name}]", check_role_actuator(role, policies.actuators))


def _check_pool(policy: PoolPolicy, policies: Policies) -> Iterator[FieldProblem]:
    yield from check_policy(policy, policies.gpu_types)
    yield from check_pool_actuator(policy, policies.actuators)


def _field_problem(name: str, message: str) -> FieldProblem:
    """Return the field and a sentence from the message of msgspec, which may end with a path."""
    found = _PATH.fullmatch(message)
    field, text = (name, message) if found is None else (name + found["path"], found["text"])
    if "matching regex" in text:  # only names have a pattern
        return field, _NAME_RULE
    return field, f"{text.replace('`', '')}."


def _kind_of(path: str) -> str:
    if path.startswith("[roles"):
        return "a role"
    if path.startswith("[actuators"):
        return "this kind of actuator"
    return "a GPU type" if path.startswith("[gpu_types") else "a pool"


def _shown(key: str) -> str:
    """Return a key as TOML writes it, shortened."""
    short = _one_line(key, _NAME_CHARS_SHOWN)
    if _BARE_KEY.fullmatch(short) or not short:
        return short
    return f'"{short}"'


def _one_line(text: str, chars_max: int) -> str:
    """Return the text without control characters, with at most so many characters."""
    shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return shown if len(shown) <= chars_max else f"{shown[: chars_max - 1]}…"
