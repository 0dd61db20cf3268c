"""Goal: the schema, the page and the example of scaling policies agree with the structs."""

import re
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from autoscaler.actuators.actuator_tables import (
    CommandTable,
    KedaTable,
    KubernetesTable,
    WebhookTable,
)
from autoscaler.policies.policies import bounds_at
from autoscaler.policies.policy_reader import read_policies
from autoscaler.policies.policy_schema import SCHEMA_NAME, schema_text
from autoscaler.policies.pool_policy import (
    GpuType,
    PolicyMode,
    PoolPolicy,
    RolePolicy,
    ScheduleEntry,
)

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/scaling_policies.md").read_text()
EXAMPLE = ROOT / "deploy/scaling.example.toml"
SECTIONS: dict[str, type[msgspec.Struct]] = {
    "Fields of a pool": PoolPolicy,
    "Entries of a schedule": ScheduleEntry,
    "Fields of a GPU type": GpuType,
    "Fields of a role": RolePolicy,
    "Fields of an actuator `kubernetes`": KubernetesTable,
    "Fields of an actuator `keda`": KedaTable,
    "Fields of an actuator `command`": CommandTable,
    "Fields of an actuator `webhook`": WebhookTable,
}
WEDNESDAY_NOON_S = 1_767_783_600.0  # 2026-01-07 12:00 in Berlin


def description(struct: type[msgspec.Struct], name: str) -> str:
    schema = msgspec.json.schema(struct)
    text: str = schema["$defs"][struct.__name__]["properties"][name]["description"]
    return text


def shown_default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value: Any = field.default if field.default is not msgspec.NODEFAULT else None
    if field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    if value is None or value in ((), {}):
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value:g}`"


@pytest.mark.parametrize("section", SECTIONS)
def test_the_page_lists_every_field_with_default_and_meaning(section: str) -> None:
    struct = SECTIONS[section]
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]

    assert re.findall(r"^\| `.+$", text, re.M) == [
        f"| `{field.name}` | {shown_default(field)} | {description(struct, field.name)} |"
        for field in msgspec.structs.fields(struct)
    ]


def test_the_stored_schema_is_that_of_the_structs() -> None:
    stored = files("autoscaler.policies").joinpath(SCHEMA_NAME).read_text("utf-8")

    assert stored == schema_text()


def test_the_schema_accepts_the_example_and_refuses_what_the_reader_refuses() -> None:
    validator = jsonschema_rs.validator_for(msgspec.json.decode(schema_text()))
    document = tomllib.loads(EXAMPLE.read_text())

    assert validator.is_valid(document)
    assert not validator.is_valid({"pools": {"a": {"replicas": 1}}})
    assert not validator.is_valid({"pools": {"a": {"replicas_min": -1}}})
    assert not validator.is_valid({"pools": {"A b": {}}})
    assert not validator.is_valid({"gpu_types": {"l4": {"memory_gib": 24}}})


def test_the_example_is_valid_and_shows_each_rule() -> None:
    policies = read_policies(EXAMPLE.read_bytes(), EXAMPLE.name)
    chat, bulk = policies.policy_of("chat-8b"), policies.policy_of("embed-small")

    assert bounds_at(chat, WEDNESDAY_NOON_S).replicas_min == 4
    assert (bulk.spot_share, bulk.replicas_max) == (1.0, 4)
    assert policies.policy_of("another").mode is PolicyMode.OBSERVE
    assert policies.curve_of("chat-70b", "h100") != policies.gpu_types["h100"].throughput
