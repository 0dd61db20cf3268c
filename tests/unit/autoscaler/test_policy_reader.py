"""Goal: a scaling policy file gives each pool its policy, or one plain line for each problem."""

import pytest

from autoscaler.policies.policies import Policies, bounds_at
from autoscaler.policies.policy_checks import lowest_cost_per_hour
from autoscaler.policies.policy_reader import (
    FILE_BYTES_MAX,
    LINE_BYTES_MAX,
    PROBLEMS_MAX,
    InvalidPoliciesError,
    read_policies,
)
from autoscaler.policies.pool_policy import GPU_TYPES_MAX, POOLS_MAX, PoolPolicy

TYPES = """
[gpu_types.l4]
memory_gib = 24
cost_per_hour = 1
spot_cost_per_hour = 0.25
quota = 8
throughput = [[1, 30], [8, 210]]

[gpu_types.h100]
memory_gib = 80
cost_per_hour = 4
throughput = [[1, 90], [16, 1200]]
"""
HOUR_S = 3600.0
WEDNESDAY_S = 1_767_744_000.0  # 2026-01-07 00:00 UTC


def read(text: str) -> Policies:
    return read_policies(text.encode(), "scaling.toml")


def problems(text: str | bytes) -> tuple[str, ...]:
    with pytest.raises(InvalidPoliciesError) as raised:
        read_policies(text.encode() if isinstance(text, str) else text, "scaling.toml")
    return raised.value.problems


def test_fields_come_from_the_pool_then_the_defaults_then_the_struct() -> None:
    policies = read(
        "[defaults]\nreplicas_max = 7\nidle_s = 60\n[pools.chat]\nreplicas_min = 2\nidle_s = 30\n"
    )

    chat = policies.policy_of("chat")
    assert (chat.replicas_min, chat.replicas_max, chat.idle_s) == (2, 7, 30)
    assert chat.queue_s == PoolPolicy().queue_s
    assert policies.policy_of("other") == policies.defaults


def test_a_pool_gets_its_own_table_else_the_longest_pattern() -> None:
    policies = read(
        '[pools."embed-*"]\n[pools."embed-large-*"]\n[pools."embed-large-1"]\n[pools.defaults]\n'
        "replicas_max = 3\n"
    )

    assert policies.table_of("embed-large-1") == "embed-large-1"
    assert policies.table_of("embed-large-2") == "embed-large-*"
    assert policies.table_of("embed-small") == "embed-*"
    assert policies.table_of("embed") is None
    assert policies.policy_of("embed").replicas_max == PoolPolicy().replicas_max


def test_a_pattern_inherits_nothing_from_a_shorter_one() -> None:
    policies = read('[pools."a*"]\nreplicas_max = 3\n[pools."ab*"]\nwarm_replicas = 1\n')

    assert policies.policy_of("abc").replicas_max == PoolPolicy().replicas_max


def test_the_first_entry_of_the_schedule_in_force_decides() -> None:
    policy = read(
        "[pools.a]\nreplicas_min = 1\nreplicas_max = 9\nschedule = ["
        '{hours = "Mon-Fri 08:00-18:00 Europe/Berlin", replicas_min = 4},'
        '{hours = "00:00-24:00 UTC", replicas_max = 5}]\n'
        '[pools.b]\nschedule = [{hours = "Sat 00:00-24:00 UTC", replicas_min = 1}]\n'
    )

    morning = bounds_at(policy.policy_of("a"), WEDNESDAY_S + 7 * HOUR_S)  # 8:00 in Berlin
    assert (morning.replicas_min, morning.replicas_max) == (4, 9)
    night = bounds_at(policy.policy_of("a"), WEDNESDAY_S + 7 * HOUR_S - 1)
    assert (night.replicas_min, night.replicas_max, night.hours) == (1, 5, "00:00-24:00 UTC")
    assert bounds_at(policy.policy_of("b"), WEDNESDAY_S).hours is None


def test_a_pool_may_have_a_curve_of_its_own() -> None:
    policies = read(
        TYPES + '[pools.a]\ngpu_types = ["l4", "h100"]\nthroughput.l4 = [[1, 5], [2, 9]]\n'
    )

    assert policies.curve_of("a", "l4") == ((1, 5.0), (2, 9.0))
    assert policies.curve_of("a", "h100") == policies.gpu_types["h100"].throughput


def test_a_default_curve_does_not_bind_pools_to_its_type() -> None:
    policies = read(
        TYPES + '[defaults]\ngpu_types = ["l4"]\nthroughput.l4 = [[1, 5]]\n'
        '[pools.a]\ngpu_types = ["h100"]\n'
    )

    assert policies.curve_of("a", "h100") == policies.gpu_types["h100"].throughput


def test_the_lowest_cost_uses_spot_gpus_up_to_the_share() -> None:
    types = read(TYPES).gpu_types.values()

    assert lowest_cost_per_hour(4, PoolPolicy(spot_share=0.5), types) == 2 * 0.25 + 2
    assert lowest_cost_per_hour(3, PoolPolicy(spot_share=0.5), types) == 0.25 + 2
    assert lowest_cost_per_hour(3, PoolPolicy(gpus_per_replica=2), types) == 6


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[pools.a]\nreplica_min = 1", "[pools.a] replica_min: The table of a pool has no such"),
        ("[pools.a]\nreplicas_min = true", "[pools.a] replicas_min: Expected int, got bool."),
        ("[pools.a]\nreplicas_min = -1", "[pools.a] replicas_min: Expected int >= 0."),
        ("[pools.a]\nreplicas_min = 10001", "[pools.a] replicas_min: Expected int <= 10000."),
        (f"[pools.a]\nreplicas_max = {'9' * 900}", "[pools.a] replicas_max: Expected int <="),
        ("[pools.a]\nidle_s = nan", "[pools.a] idle_s: Expected float >= 0.01."),
        ("[pools.a]\nidle_s = inf", "[pools.a] idle_s: Expected float <="),
        ("[pools.a]\nqueue_s = -inf", "[pools.a] queue_s: Expected float >= 0.01."),
        (f"[pools.a]\nqueue_s = {'9' * 400}", "[pools.a] queue_s: Number out of range."),
        ("[pools.a]\nidle_s = 2026-01-01", "[pools.a] idle_s: Expected float, got date."),
        ("[pools.a]\nbudget_per_hour = 0", "[pools.a] budget_per_hour: Expected float > 0"),
        ("[pools.a]\nmode = 'off'", "[pools.a] mode: Invalid enum value 'off'."),
        ("[pools.a]\nutilization = 1.5", "[pools.a] utilization: Expected float <= 1.0."),
        ("[pools.a]\nzones = ['a\\nb', 3]", "[pools.a] zones[0]: A name has"),
        ('[pools.a]\nzones = ["a\\n"]', "[pools.a] zones[0]: A name has"),
        ("[pools.a]\nthroughput = {l4 = [[1, 'x']]}", "[pools.a] throughput[...][0][1]: Expected"),
        ("[pools.a]\nschedule = [{hour = 1}]", "[pools.a] schedule[0]: Object contains unknown"),
        ("[defaults]\nx = 1", "[defaults] x: The table of a pool has no such field."),
        ("defaults = 1", "[defaults]: Expected a table."),
        ("pools = [1]", "[pools]: Expected a table of tables."),
        ("pools.a = 1", "[pools.a]: Expected a table."),
        (
            "[pool.a]",
            "[pool]: The tables of a file are gpu_types, defaults, pools, roles, actuators.",
        ),
        ("[pools.'A b']", '[pools."A b"]: A name has lower-case letters'),
        ("[pools.'*']", '[pools."*"]: A name has'),
        ('[pools."a\\n"]', '[pools."a\N{REPLACEMENT CHARACTER}"]: A name has'),
        ("[gpu_types.'l4*']", '[gpu_types."l4*"]: A name has'),
        ("[gpu_types.l4]\ncost_per_hour = 1", "[gpu_types.l4] memory_gib: The field is required."),
        (TYPES + "x = 1", "[gpu_types.h100] x: The table of a GPU type has no such field."),
    ],
)
def test_a_wrong_field_is_named_with_file_and_table(text: str, problem: str) -> None:
    assert problems(text)[0].startswith(f"scaling.toml: {problem}")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ("replicas_min = 5\nreplicas_max = 3", "replicas_min: 5 is above replicas_max 3."),
        (
            "replicas_min = 2\nwarm_replicas = 2\nreplicas_max = 3",
            "replicas_min: 2 and warm_replicas 2 are above replicas_max 3.",
        ),
        (
            'schedule = [{hours = "00:00-24:00 UTC", replicas_min = 11}]',
            "schedule[0].replicas_min: 11 is above replicas_max 10.",
        ),
        ('schedule = [{hours = "00:00-24:00 UTC"}]', "schedule[0]: The entry has neither"),
        (
            'schedule = [{hours = "08:00-18:00 Mars", replicas_min = 1}]',
            "schedule[0].hours: 'Mars' is no time zone.",
        ),
        ('gpu_types = ["a100"]', "gpu_types: The file has no table gpu_types.a100."),
        ('gpu_types = ["l4", "l4"]', "gpu_types: A name occurs twice."),
        ('zones = ["a", "a"]', "zones: A name occurs twice."),
        ("throughput.l3 = [[1, 2]]", "throughput.l3: The file has no table gpu_types.l3."),
        (
            'gpu_types = ["l4"]\nthroughput.l4 = [[1, 2], [2, 1]]',
            "throughput.l4: It falls from 2 to 1 tokens/s.",
        ),
        ("spot_share = 0.5", "spot_share: No GPU type of the pool has a spot_cost_per_hour."),
        ('gpu_types = ["h100"]\nspot_share = 1', "spot_share: No GPU type of the pool"),
        (
            'gpu_types = ["l4"]\ngpus_per_replica = 3\nreplicas_min = 2\nwarm_replicas = 1',
            "replicas_min: The quotas allow 2 replicas, and 3 must run.",
        ),
        ("budget_per_hour = 5", "budget_per_hour: The pool has no gpu_types"),
        (
            'gpu_types = ["h100"]\nreplicas_min = 2\nbudget_per_hour = 7.9',
            "budget_per_hour: 7.9 cannot pay the 2 replicas that must run: 8.",
        ),
        (
            'gpu_types = ["h100"]\nbudget_per_hour = 7.9\n'
            'schedule = [{hours = "00:00-24:00 UTC", replicas_min = 2}]',
            "budget_per_hour: 7.9 cannot pay the 2 replicas",
        ),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields: str, problem: str) -> None:
    found = problems(f"{TYPES}\n[pools.a]\n{fields}")

    assert len(found) == 1
    assert found[0].startswith(f"scaling.toml: [pools.a] {problem}")


def test_what_just_fits_is_valid() -> None:
    """The warm pool fills the bounds, the budget and the quota of 8; the curve ends flat."""
    policies = read(
        f"{TYPES}\n[pools.a]\ngpu_types = ['l4']\nreplicas_min = 6\nwarm_replicas = 2\n"
        "replicas_max = 8\nbudget_per_hour = 8\nthroughput.l4 = [[1, 5], [2, 5]]\n"
        "[gpu_types.t4]\nmemory_gib = 16\ncost_per_hour = 1\nspot_cost_per_hour = 1\n"
        "throughput = [[1, 1]]\n"
    )

    assert policies.policy_of("a").warm_replicas == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("spot_cost_per_hour = 1.5", "spot_cost_per_hour: 1.5 is above cost_per_hour 1."),
        ("throughput = [[2, 1], [2, 3]]", "throughput: 2 concurrent requests follow 2"),
        ("throughput = [[1, 9], [2, 8]]", "throughput: It falls from 9 to 8 tokens/s."),
    ],
)
def test_a_gpu_type_that_contradicts_itself_is_refused(text: str, problem: str) -> None:
    field = text.partition(" ")[0]
    own = {
        "memory_gib": "memory_gib = 1",
        "cost_per_hour": "cost_per_hour = 1",
        "throughput": "throughput = [[1, 1]]",
        field: text,
    }

    (found,) = problems("[gpu_types.t]\n" + "\n".join(own.values()))

    assert found.startswith(f"scaling.toml: [gpu_types.t] {problem}")


def test_all_problems_are_told_and_one_of_the_defaults_once() -> None:
    assert len(problems("[pools.a]\nx = 1\nreplicas_min = 'a'\n[pools.b]\ny = 1")) == 3
    pools = "".join(f"[pools.p{number}]\n" for number in range(5))
    assert problems(f"[defaults]\nreplicas_min = 11\n{pools}") == (
        "scaling.toml: [defaults] replicas_min: 11 is above replicas_max 10.",
    )


def test_the_number_and_the_length_of_problems_are_bounded() -> None:
    many = "[defaults]\n" + "\n".join(f"x{number} = 1" for number in range(500))
    assert len(problems(many)) == PROBLEMS_MAX
    (long,) = problems(f"[pools.a]\nmode = '{'x' * 1000}'")
    assert len(long) <= 500


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "The file has no table."),
        (b"# only a comment\n", "The file has no table."),
        (b"\xff\xfe", "The file is not UTF-8."),
        (b"[pools", "The file is not TOML: "),
        (b"a = 1\na = 2", "The file is not TOML: "),
        (b"\x00", "The file is not TOML: "),
        (b"a = " + b"[\n" * 5000, "Values are nested too deeply."),
        (b"\n" * (FILE_BYTES_MAX + 1), "The file is larger than 1 MiB."),
        (b"a." * LINE_BYTES_MAX + b"a = 1", f"A line is longer than {LINE_BYTES_MAX} bytes."),
    ],
    ids=lambda value: None if isinstance(value, str) else f"{len(value)} bytes",
)
def test_what_is_no_policy_file_is_refused(data: bytes, problem: str) -> None:
    (found,) = problems(data)

    assert found.startswith(f"scaling.toml: {problem}")
    assert found.isprintable()


def test_the_numbers_of_tables_are_limited() -> None:
    most = "".join(f"[pools.p{number}]\n" for number in range(POOLS_MAX))
    assert len(read(most).pools) == POOLS_MAX
    assert problems(most + "[pools.more]\n") == (
        f"scaling.toml: [pools]: It has {POOLS_MAX + 1} tables; the limit is {POOLS_MAX}.",
    )
    types = "".join(f"[gpu_types.t{number}]\n" for number in range(GPU_TYPES_MAX + 1))
    assert problems(types) == ("scaling.toml: [gpu_types]: It has 65 tables; the limit is 64.",)


@pytest.mark.parametrize("kind", ["kubernetes", "keda"])
def test_a_warm_pool_needs_replicas_that_start_in_standby(kind: str) -> None:
    """Else each of them joins the group at once, and another one is started for ever."""
    table = f'[actuators.a]\nkind = "{kind}"\n'
    pool = "[pools.p]\nwarm_replicas = 1\n"
    with pytest.raises(InvalidPoliciesError, match=r"warm_replicas: .* do not start in standby"):
        read(table + pool)
    assert read(f"{table}standby = true\n{pool}").policy_of("p").warm_replicas == 1
    assert read(table + "[pools.p]\nwarm_replicas = 0\n").policy_of("p").warm_replicas == 0
