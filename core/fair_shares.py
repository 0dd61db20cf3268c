"""Max-min fairness: how to share a whole number of items, by weight."""

from collections.abc import Hashable, Mapping
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


def fair_shares(
    demands: Mapping[K, int], total: int, weights: Mapping[K, int] | None = None
) -> dict[K, int]:
    """Share `total` items by weighted max-min fairness: nobody gets more than its demand.

    Without `weights` all weigh the same. Items that cannot be divided go to the first keys of
    `demands`. Source: Bertsekas and Gallager, Data Networks, 6.5.2.
    """
    if weights is None:
        weights = dict.fromkeys(demands, 1)
    shares: dict[K, int] = {}
    left, weight_left = total, sum(weights[key] for key in demands)
    for key in sorted(demands, key=lambda key: demands[key] / weights[key]):
        if demands[key] > left * weights[key] // weight_left:
            break
        shares[key] = demands[key]
        left -= demands[key]
        weight_left -= weights[key]
    unsatisfied = [key for key in demands if key not in shares]
    whole = {key: left * weights[key] // weight_left for key in unsatisfied}
    rest = left - sum(whole.values())
    return shares | {key: whole[key] + (n < rest) for n, key in enumerate(unsatisfied)}
