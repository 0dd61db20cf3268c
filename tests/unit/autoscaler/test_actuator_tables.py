"""Goal: a scaling policy file names the actuators of pools, or says plainly what is wrong."""

import pytest

from autoscaler.actuators.actuator_tables import CommandTable, KedaTable, KubernetesTable
from autoscaler.policies.policies import Policies
from autoscaler.policies.policy_reader import InvalidPoliciesError, read_policies

TWO = '[actuators.a]\nkind = "kubernetes"\n[actuators.b]\nkind = "keda"\n'


def read(text: str) -> Policies:
    return read_policies(text.encode(), "scaling.toml")


def test_tables_become_structs_of_their_kind_with_defaults() -> None:
    found = read(
        TWO
        + '[actuators.c]\nkind = "command"\ncommand = ["/bin/scale", "-v"]\ntimeout_s = 2\n'
        + '[defaults]\nactuator = "a"\n[pools.chat]\nactuator = "c"\n'
    )

    assert found.actuators == {
        "a": KubernetesTable(),
        "b": KedaTable(),
        "c": CommandTable(("/bin/scale", "-v"), 2.0),
    }
    assert (found.actuator_of("chat"), found.actuator_of("other")) == ("c", "a")


def test_the_only_actuator_is_that_of_every_pool() -> None:
    assert read('[actuators.a]\nkind = "embedded"\n').actuator_of("chat") == "a"
    assert read("[defaults]\n").actuator_of("chat") is None


def test_a_pool_that_is_not_active_needs_no_actuator() -> None:
    found = read(TWO + '[defaults]\nmode = "observe"\n')

    assert found.actuator_of("chat") is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (TWO, "[defaults] actuator: The file has 2 actuators, and an active pool names one."),
        (
            '[pools.chat]\nactuator = "x"\n',
            "[pools.chat] actuator: The file has no table actuators.x.",
        ),
        (
            "[actuators.a]\n",
            "[actuators.a] kind: The kinds are embedded, kubernetes, keda, command, webhook.",
        ),
        (
            '[actuators.a]\nkind = "keda"\nport = 1\n',
            "[actuators.a] port: The table of this kind of actuator has no such field.",
        ),
        ('[actuators.a]\nkind = "command"\n', "[actuators.a] command: The field is required."),
        (
            '[actuators.a]\nkind = "kubernetes"\ntimeout_s = 60\n',
            "[actuators.a] timeout_s: Expected float <= 9.0.",
        ),
        (
            '[actuators.a]\nkind = "webhook"\nurl = "http://h/x"\nsecret_file = "s"\n',
            "[actuators] a.url: http is only for this machine; use https.",
        ),
        (
            '[actuators.a]\nkind = "keda"\n[actuators.b]\nkind = "keda"\n[defaults]\n'
            'actuator = "a"\n',
            "[actuators]: The file has several tables of kind keda.",
        ),
        ("actuators = 3\n", "[actuators]: Expected a table of tables."),
    ],
)
def test_a_wrong_table_is_one_plain_line(text: str, problem: str) -> None:
    with pytest.raises(InvalidPoliciesError) as raised:
        read(text)

    assert raised.value.problems == (f"scaling.toml: {problem}",)
