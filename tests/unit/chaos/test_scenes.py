"""Goal: every promise of the harness is tried by some drill, on an installation of its shape."""

import re
from pathlib import Path

import pytest

from chaos.__main__ import main
from chaos.arguments import parse, rerun, skew_s, trials_of, wanted
from chaos.installations.brokers import Broker, properties
from chaos.suites import SUITES

PARTS = [part for suite in SUITES for part in suite.parts]
PAGE = (Path(__file__).parents[3] / "docs/chaos.md").read_text()


def test_every_promise_of_the_page_is_tried() -> None:
    section = PAGE.partition("## What is promised")[2].partition("\n## ")[0]
    promised = re.findall(r"^\| ([PA]\d+) \|", section, re.M)
    assert len(promised) == len(set(promised))
    assert set().union(*(part.promises for part in PARTS)) == set(promised)
    assert all(part.trials_long for part in PARTS)


def test_the_page_says_what_the_quick_run_leaves_out() -> None:
    tried = set().union(*(part.promises for part in PARTS if wanted(part, parse([]))))
    everything = set().union(*(part.promises for part in PARTS))
    (row,) = re.findall(r"^\| `make chaos` \| ([^|]+) \|", PAGE, re.M)
    assert set(re.findall(r"P\d+", row)) == everything - tried


def test_the_page_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    options = set(re.findall(r"--[a-z]+", capsys.readouterr().out)) - {"--help"}
    assert [option for option in sorted(options) if option not in PAGE] == []


def test_drills_have_names_of_their_own() -> None:
    assert len({part.name for part in PARTS}) == len(PARTS)


def test_what_is_named_is_tried_at_least_once() -> None:
    (brokers,) = (part for part in PARTS if part.name == "brokers")
    assert not wanted(brokers, parse([]))
    named = parse(["--promise", "P10"])
    assert wanted(brokers, named)
    assert trials_of(brokers, named) == 1
    assert trials_of(brokers, parse(["--promise", "P10", "--trials", "7"])) == 7


def test_only_what_was_named_is_tried() -> None:
    asked = parse(["--promise", "P13"])
    assert [part.name for part in PARTS if wanted(part, asked)] == ["poison"]
    asked = parse(["--part", "storm"])
    assert [part.name for part in PARTS if wanted(part, asked)] == ["storm"]


def test_shapes_are_those_of_their_scenes(tmp_path: Path) -> None:
    url = "http://127.0.0.1:1/v1"
    shapes = {suite.name: suite.spec(tmp_path, url, 400) for suite in SUITES}
    assert shapes["pair"].host_names == ("a", "b")
    assert shapes["poisoned"].host_names == ("a", "b")
    assert shapes["cluster"].broker_count == 3
    assert "http://127.0.0.1:1/v1" in shapes["recorded"].options
    assert len(shapes["disks"].mounts) == 3


def test_the_clock_of_the_second_host_is_ahead_or_behind(tmp_path: Path) -> None:
    (pair,) = (suite for suite in SUITES if suite.name == "pair")
    asked = [parse(["--seed", seed]) for seed in ("7", "8")]
    offsets = [pair.spec(tmp_path, "", skew_s(one)).env_by_host["b"] for one in asked]
    assert [offset["CHAOS_CLOCK_OFFSET_S"] for offset in offsets] == ["400", "-400"]


def test_a_round_runs_alone_as_it_did_among_others() -> None:
    """Its seed is the run's and its number, while the clock is that of the run."""
    (storm,) = (part for part in PARTS if part.name == "storm")
    asked = parse(["--seed", "7", "--long"])
    command = rerun(storm, 8, asked)
    words = command.removeprefix("python -m chaos ").split()
    alone = parse(words)
    assert (alone.seed, alone.part, alone.long) == (8, ["storm"], True)
    assert trials_of(storm, alone) == 1
    assert skew_s(alone) == skew_s(asked) != skew_s(parse(["--seed", "8"]))


def test_a_run_of_nothing_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
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


def test_a_cluster_keeps_three_copies_and_advertises_its_proxies() -> None:
    nodes = [broker(node) for node in (1, 2, 3)]
    text = properties(nodes[1], nodes, Path("log"), session_s=2.0)
    found = dict(line.split("=", 1) for line in text.splitlines())
    assert found["node.id"] == "2"
    assert found["default.replication.factor"] == "3"
    assert found["min.insync.replicas"] == "2"
    assert found["controller.quorum.voters"].count("@") == 3
    assert "A://127.0.0.1:23" in found["listeners"]
    assert "A://127.0.0.1:24" in found["advertised.listeners"]


def test_one_broker_keeps_one_copy() -> None:
    text = properties(broker(1), [broker(1)], Path("log"), session_s=2.0)
    assert "offsets.topic.replication.factor=1\n" in text
    assert "min.insync.replicas=1\n" in text
