"""What `budget.accounting = "auto"` stands for: the noise that errs less for the promise (epsilon, delta).

By settings alone, as a budget period is one or the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi
from typing import Literal

from udp_stream.adapters.settings.limits import CONCENTRATED, RHO_MIN


def chosen_accounting(
    epsilon: float, rho: float, asked: Sequence[float | Literal["auto"]], around: bool
) -> Literal["pure", "approximate"]:
    """ "approximate", or "pure" where that buys more; `rho` is what `epsilon` is with its delta.

    `asked` are the epsilons of a HAT's statistics, and `around` says whether means are taken around forecasts with an
    automatic epsilon.

    1. Pure where accounting in rho cannot take the settings: its amounts have a least one, and one HAT of the fixed
       epsilons, each of which costs half of its square, may cost more than the budget.
    2. Automatic epsilons are many and small, so rho buys more of them. Around forecasts, with a clip for each HAT
       (`docs/budgets.md`): rho errs less on three of five recorded days of Austin, as much on one, 0.7 % more on one,
       and 2.4 % more on half an hour of Surat.
    3. Fixed ones go by how many are bought: epsilon / sum e_i HATs under Laplace noise, and rho pi / sum e_i^2 under
       Gaussian noise of the same expected sizes.

    >>> [chosen_accounting(10, 1.539, [one, 0, 0], around=False) for one in ("auto", 0.2, 1)]
    ['approximate', 'approximate', 'pure']
    >>> chosen_accounting(10, 1.539, ["auto", 2, 0], around=True)
    'pure'
    """
    fixed = [one for one in asked if one != "auto"]
    squares = sum(one * one for one in fixed)
    least, _, _ = CONCENTRATED
    if rho < RHO_MIN or squares / 2 > rho or any(0 < one < least for one in fixed):
        return "pure"
    buys_more = rho * pi * sum(fixed) > epsilon * squares
    return "approximate" if around or not squares or buys_more else "pure"
