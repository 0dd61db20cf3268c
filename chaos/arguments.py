"""What a run of the harness is asked for."""

import argparse
import secrets
from collections.abc import Sequence
from pathlib import Path

from chaos.faults import clocks
from chaos.suites import SUITES, DrillSpec

SEEDS = 2**31
SKEWS = {"ahead": clocks.SKEW_S, "behind": -clocks.SKEW_S}
DESCRIPTION = "Break a running installation on purpose, and judge what it promised."


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return what the command line asks for."""
    known = sorted({name for suite in SUITES for part in suite.parts for name in part.promises})
    parser = argparse.ArgumentParser(prog="python -m chaos", description=DESCRIPTION)
    parser.add_argument(
        "--seed",
        type=int,
        default=secrets.randbelow(SEEDS),
        help="of an earlier run: the same plans",
    )
    parser.add_argument("--promise", action="append", choices=known, help="only what proves it")
    parts = [part.name for suite in SUITES for part in suite.parts]
    parser.add_argument("--part", action="append", choices=parts, help="only this drill")
    parser.add_argument("--trials", type=_count, help="of each part, in place of its own number")
    parser.add_argument(
        "--clock", choices=SKEWS, help="of the pair's second host; else by the parity of the seed"
    )
    parser.add_argument("--long", action="store_true", help="many trials, under an hour")
    parser.add_argument("--json", type=Path, default=Path("out/chaos.json"), help="all numbers")
    parser.add_argument("--work", type=Path, help="where installations keep their data meanwhile")
    parser.add_argument("--keep", action="store_true", help="do not remove that data")
    return parser.parse_args(arguments)


def trials_of(part: DrillSpec, asked: argparse.Namespace) -> int:
    """Return how many trials of a part were asked for."""
    trials: int = asked.trials or (part.trials_long if asked.long else part.trials)
    return max(trials, 1) if asked.promise or asked.part else trials


def wanted(part: DrillSpec, asked: argparse.Namespace) -> bool:
    """Whether a part proves anything that was asked for."""
    names = set(asked.promise or part.promises)
    named = not asked.part or part.name in asked.part
    return named and trials_of(part, asked) > 0 and bool(names & part.promises)


def skew_s(asked: argparse.Namespace) -> float:
    """Return by how many seconds the clock of the second host of a pair is wrong."""
    return SKEWS[asked.clock or ("ahead" if asked.seed % 2 else "behind")]


def rerun(part: DrillSpec, seed: int, asked: argparse.Namespace) -> str:
    """Return the command that runs one round of a run by itself."""
    clock = next(name for name, seconds in SKEWS.items() if seconds == skew_s(asked))
    words = f"python -m chaos --part {part.name} --trials 1 --seed {seed} --clock {clock}"
    return f"{words} --long" if asked.long else words


def _count(text: str) -> int:
    if (count := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return count
