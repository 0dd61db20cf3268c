"""Goal: every promise is tested by some drill, on an installation that fits it."""

import re
from pathlib import Path

import pytest

from chaos.__main__ import main
from chaos.arguments import is_selected, parse, rerun_command, round_count, skew_s
from chaos.services import Broker, properties
from chaos.suites import SUITES

DRILLS = [drill for suite in SUITES for drill in suite.drills]
PAGE = (Path(__file__).parents[3] / "docs/chaos.md").read_text()


def test_every_documented_promise_is_tested() -> None:
    section = PAGE.partition("## What is promised")[2].partition("\n## ")[0]
    promised = re.findall(r"^\| ([PA]\d+) \|", section, re.M)
    assert len(promised) == len(set(promised))
    assert set().union(*(drill.promises for drill in DRILLS)) == set(promised)
    assert all(drill.rounds[True] for drill in DRILLS)
    assert len({drill.name for drill in DRILLS}) == len(DRILLS)


def test_the_promises_left_out_of_the_quick_run_are_documented() -> None:
    tried = set().union(*(drill.promises for drill in DRILLS if is_selected(drill, parse([]))))
    everything = set().union(*(drill.promises for drill in DRILLS))
    (row,) = re.findall(r"^\| `make chaos` \| ([^|]+) \|", PAGE, re.M)
    assert set(re.findall(r"P\d+", row)) == everything - tried


def test_every_option_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    options = set(re.findall(r"--[a-z]+", capsys.readouterr().out)) - {"--help"}
    assert [option for option in sorted(options) if option not in PAGE] == []


@pytest.mark.parametrize(
    ("arguments", "drills"),
    [
        (["--promise", "P13"], ["poison"]),
        (["--part", "storm"], ["storm"]),
        (["--promise", "P10"], ["brokers"]),  # no round of it is quick, unless it is named
    ],
)
def test_only_named_drills_are_selected(arguments: list[str], drills: list[str]) -> None:
    options = parse(arguments)
    selected = [drill for drill in DRILLS if is_selected(drill, options)]
    assert [drill.name for drill in selected] == drills
    assert round_count(selected[0], options) == 1
    assert round_count(selected[0], parse([*arguments, "--trials", "7"])) == 7


def test_installations_fit_their_suites(tmp_path: Path) -> None:
    url = "http://127.0.0.1:1/v1"
    specs = {suite.name: suite.build_spec(tmp_path, url, 400) for suite in SUITES}
    assert specs["pair"].host_names == ("a", "b")
    assert specs["poisoned"].host_names == ("a", "b")
    assert specs["cluster"].broker_count == 3
    assert "http://127.0.0.1:1/v1" in specs["recorded"].options
    assert len(specs["disks"].mounts) == 3


def test_the_clock_of_the_second_host_is_ahead_or_behind(tmp_path: Path) -> None:
    (pair,) = (suite for suite in SUITES if suite.name == "pair")
    options = [parse(["--seed", seed]) for seed in ("7", "8")]
    offsets = [pair.build_spec(tmp_path, "", skew_s(one)).env_by_host["b"] for one in options]
    assert [offset["CHAOS_CLOCK_OFFSET_S"] for offset in offsets] == ["400", "-400"]


def test_a_repeated_round_has_the_same_seed_and_clock() -> None:
    """Its seed is the run's plus its number, while the clock is that of the run."""
    (storm,) = (drill for drill in DRILLS if drill.name == "storm")
    options = parse(["--seed", "7", "--long"])
    command = rerun_command(storm, 8, options)
    words = command.removeprefix("python -m chaos ").split()
    alone = parse(words)
    assert (alone.seed, alone.part, alone.long) == (8, ["storm"], True)
    assert round_count(storm, alone) == 1
    assert skew_s(alone) == skew_s(options) != skew_s(parse(["--seed", "8"]))


def test_an_empty_selection_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report = tmp_path / "chaos.json"
    assert main(["--promise", "P12", "--part", "storm", "--json", str(report)]) == 2
    assert "no drill" in capsys.readouterr().err
    assert not report.exists()


def broker(node: int) -> Broker:
    return Broker(
        node=node,
        direct=node * 10,
        inner=node * 10 + 1,
        controller=node * 10 + 2,
        proxied={"a": (node * 10 + 3, node * 10 + 4)},
    )


def properties_of(count: int) -> dict[str, str]:
    """Return the properties of the first broker of a cluster of `count`."""
    nodes = [broker(node) for node in range(1, count + 1)]
    text = properties(nodes[0], nodes, Path("log"), session_s=2.0)
    return dict(line.split("=", 1) for line in text.splitlines())


def test_a_cluster_has_three_replicas_and_advertises_its_proxies() -> None:
    found, alone = properties_of(3), properties_of(1)
    assert found["node.id"] == "1"
    assert (found["default.replication.factor"], found["min.insync.replicas"]) == ("3", "2")
    assert found["controller.quorum.voters"].count("@") == 3
    assert "A://127.0.0.1:13" in found["listeners"]
    assert "A://127.0.0.1:14" in found["advertised.listeners"]
    assert (alone["offsets.topic.replication.factor"], alone["min.insync.replicas"]) == ("1", "1")
