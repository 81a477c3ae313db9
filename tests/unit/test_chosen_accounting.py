"""`budget.accounting = "auto"`: the noise that errs less for the same promise, by settings alone."""

from bisect import bisect_left

import pytest

from udp_stream.adapters.settings import load
from udp_stream.ledger.conversion import rho_nano_of
from udp_stream.mechanisms.noise import concentrated, expected_noise, pure
from udp_stream.units import NANO


def policy(*flags):
    return load(None, ("budget.accounting=auto", *flags), {}).policy


SHARED = "queries.share=0.2", "queries.unit_m=500"


@pytest.mark.parametrize(
    ("flags", "chosen"),
    [
        ((), "approximate"),
        (("release.mean=forecast-clip",), "approximate"),
        (("release.mean=array-averaging",), "approximate"),
        (("release.mean=array-averaging", "release.mean_epsilon=2"), "pure"),
        (("release.mean=array-averaging", "release.mean_epsilon=0.2"), "approximate"),
        (("release.mean=auto", "release.mean_epsilon=0.2", "release.suppression=chop-user"), "pure"),
        (("release.mean_epsilon=0", "release.cdf_epsilon=1"), "pure"),
        (("release.mean_epsilon=0", "release.cdf_epsilon=auto"), "approximate"),
        (("release.mean_epsilon=2",), "pure"),  # around forecasts, too
        (("release.mean_epsilon=1",), "pure"),
        (("release.mean=forecast-clip", "release.mean_epsilon=1"), "pure"),
        (("release.mean_epsilon=0.2",), "approximate"),
        (("release.mean_epsilon=2", "release.cdf_epsilon=auto"), "pure"),
        (("release.variance_epsilon=0.5",), "approximate"),
        (("release.variance_epsilon=2",), "pure"),  # one such variance is more than the whole rho
        (("release.variance_epsilon=1.6", *SHARED), "pure"),  # or more than the part of it that speeds have
    ],
)
def test_what_auto_stands_for_is_a_policy_like_any_other(flags, chosen):
    assert policy(*flags) == load(None, (f"budget.accounting={chosen}", *flags), {}).policy


@pytest.mark.parametrize("epsilon", [0.0001, 0.05, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0])
@pytest.mark.parametrize("key", ["mean_epsilon", "variance_epsilon", "cdf_epsilon"])
@pytest.mark.parametrize("mean", ["auto", "forecast-clip", "baseline"])
def test_what_pure_accounting_takes_auto_takes(mean, key, epsilon):
    flags = f"release.mean={mean}", f"release.{key}={epsilon}"
    assert load(None, flags, {}) and policy(*flags)
    assert load(None, ("budget.epsilon=0.0001",), {}) and policy("budget.epsilon=0.0001").accounting == "pure"


@pytest.mark.parametrize("budget", [1, 10, 40])
@pytest.mark.parametrize("epsilon", [0.05, 0.2, 0.4, 0.5, 0.8, 2.0])
def test_fixed_epsilons_get_the_noise_that_buys_more_hats_of_the_same_error(budget, epsilon):
    """Counted with the noise itself: the rho at which Gaussian noise is as large as Laplace noise of this epsilon."""
    if epsilon >= budget:
        return
    flags = ("release.mean=array-averaging", f"release.mean_epsilon={epsilon}", f"budget.epsilon={budget}")
    laplace = expected_noise(10**6, pure(round(epsilon * NANO)))
    cost = bisect_left(
        range(3 * 10**9), True, lo=10**5, key=lambda nano: expected_noise(10**6, concentrated(nano)) <= laplace
    )
    buys = rho_nano_of(budget * NANO, 1e-6) / cost
    assert policy(*flags).accounting == ("approximate" if buys > budget / epsilon else "pure")


def test_a_budget_of_rho_is_none_of_its_choices():
    with pytest.raises(Exception, match=r"budget.rho: expected 0 where budget.accounting is"):
        policy("budget.rho=1")
