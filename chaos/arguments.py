"""Inject faults into a running installation and check its promises: `python -m chaos`."""

import argparse
import secrets
from collections.abc import Sequence
from pathlib import Path

from chaos.installations.settings import CLOCK_SKEW_S
from chaos.suites import SUITES, DrillSpec

SEEDS = 2**31
SKEWS = {"ahead": CLOCK_SKEW_S, "behind": -CLOCK_SKEW_S}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    promises = sorted({p for suite in SUITES for drill in suite.drills for p in drill.promises})
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument(
        "--seed",
        type=int,
        default=secrets.randbelow(SEEDS),
        help="of an earlier run: the same plans",
    )
    parser.add_argument(
        "--promise", action="append", choices=promises, help="only drills that test it"
    )
    names = [drill.name for suite in SUITES for drill in suite.drills]
    parser.add_argument("--part", action="append", choices=names, help="only this drill")
    parser.add_argument("--trials", type=_count, help="of each part, in place of its own number")
    parser.add_argument(
        "--clock", choices=SKEWS, help="of the pair's second host; else by the parity of the seed"
    )
    parser.add_argument("--long", action="store_true", help="many trials, under an hour")
    parser.add_argument("--json", type=Path, default=Path("out/chaos.json"), help="all numbers")
    parser.add_argument("--work", type=Path, help="where installations keep their data meanwhile")
    parser.add_argument("--keep", action="store_true", help="do not remove that data")
    return parser.parse_args(arguments)


def round_count(drill: DrillSpec, options: argparse.Namespace) -> int:
    """Return how many rounds of a drill to run."""
    rounds: int = options.trials or drill.rounds[options.long]
    return max(rounds, 1) if options.promise or options.part else rounds


def is_selected(drill: DrillSpec, options: argparse.Namespace) -> bool:
    """Return whether the options select a drill."""
    promises = set(options.promise or drill.promises)
    is_named = not options.part or drill.name in options.part
    return is_named and round_count(drill, options) > 0 and bool(promises & drill.promises)


def skew_s(options: argparse.Namespace) -> float:
    """Return the clock offset, in seconds, of the second host of a pair."""
    return SKEWS[options.clock or ("ahead" if options.seed % 2 else "behind")]


def rerun_command(drill: DrillSpec, seed: int, options: argparse.Namespace) -> str:
    """Return the command that repeats one round of a run alone."""
    clock = next(name for name, seconds in SKEWS.items() if seconds == skew_s(options))
    command = f"python -m chaos --part {drill.name} --trials 1 --seed {seed} --clock {clock}"
    return f"{command} --long" if options.long else command


def _count(text: str) -> int:
    if (count := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return count
