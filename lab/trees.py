"""`cdf-trees`: errors of tree-based CDFs as arXiv 2409.18573 has them, beside least squares over
the same nodes.

Errors are expected squared l2 errors of a CDF, times (n epsilon)^2. A tree has branching b and
parts e of the budget. The text lacks the numbers of Figure 1, Lemma IV.4 and Section VI's
experiment: those here are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from heapq import heappush, heappushpop
from itertools import product
from math import cbrt, isqrt, log, log2, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.data import Setup
from lab.results import Curve, Figure, Finding, Found, Panel, Points, Results, Row, Tables
from udp_stream.base.arrays import Integers
from udp_stream.mechanisms import cdf
from udp_stream.mechanisms.cdf import Tree, best_tree
from udp_stream.mechanisms.samplers import discrete_laplace

PAPER = "arXiv 2409.18573"
BINS = (64, 256, 1024)
SAMPLES = (1000, 10_000)
RUNS_MAX = 1000
TRIED = 300


def plain_error(branching: Sequence[float], shares: Sequence[float]) -> float:
    """Error of Theorem IV.1: 4 K sum of (b_i - 1) / e_i^2. Branching can be real."""
    return 4 * prod(branching) * sum((b - 1) / e**2 for b, e in zip(branching, shares, strict=True))


def plain_shares(branching: Sequence[int]) -> tuple[float, ...]:
    """Shares of Theorem IV.2: proportional to the cube roots of b_i - 1."""
    roots = [cbrt(b - 1) for b in branching]
    return tuple(root / sum(roots) for root in roots)


def even(branching: Sequence[float]) -> tuple[float, ...]:
    """Equal shares for all levels."""
    return (1 / len(branching),) * len(branching)


def real_tree_error(bins: float, b: float) -> float:
    """Error of Theorem IV.3, of log K / log b levels: a real number."""
    return 4 * bins * (log(bins) / log(b)) ** 3 * (b - 1)


def digits(branching: Sequence[int]) -> Integers:
    """How many nodes of each level cover the first k leaves (Lemma IV.1), shape (levels, K), k = 0,
    1, ..., K - 1."""
    below = prod(branching) // np.cumprod(branching)
    found: Integers = np.arange(prod(branching)) // below[:, None] % np.array(branching)[:, None]
    return found


def refined_errors(tree: Tree) -> tuple[float, float]:
    """Errors of Appendix B: with children combined into their parents; then with left and right
    coverings combined, too."""
    variances = 8 / np.array(tree.precisions)
    nodes = digits(tree.branching)
    left = variances @ nodes[:, 1:]
    right = variances @ (np.array(tree.branching)[:, None] - 1 - nodes[:, :-1])
    return float(left.sum()), float((left * right / (left + right)).sum())


def factorisations(n: int, least: int = 2) -> Iterator[tuple[int, ...]]:
    """All ways to write n as a product of factors of at least this, in ascending order."""
    for b in range(least, isqrt(n) + 1):
        if n % b == 0:
            yield from ((b, *rest) for rest in factorisations(n // b, b))
    yield (n,)


@cache
def best_even(bins: int) -> tuple[float, int]:
    """The least plain error of integer branching with even budgets, and the height that has it."""
    return min((plain_error(b, even(b)), len(b)) for b in factorisations(bins))


def consistent_counts_l1(noisy: NDArray[Any], total: int | NDArray[Any]) -> Integers:
    """Consistent counts like `cdf.consistent_counts`, nearest in l1: pooled blocks take a median.
    O(bins log bins) per row, in Python."""
    rows, totals = cdf.rows_and_totals(noisy, total)
    pooled = np.array([_pooled_medians(row) for row in rows[:, :-1].tolist()], dtype=np.int64)
    inner = np.clip(pooled.reshape(len(rows), rows.shape[1] - 1), 0, totals[:, None])
    return np.hstack((inner, totals[:, None])).reshape(np.shape(noisy))


def _pooled_medians(row: list[int]) -> list[int]:
    """Isotonic regression in l1 of integers. The least cost of the entries so far, as a function of
    a bound on the last entry, is convex and falls to its minimum; the heap holds the (negated)
    places where its slope rises, two for each entry less the place cut off. Its top is the least
    minimiser; going back, an entry is at most the next."""
    heap = list[int]()
    minimisers = []
    for y in row:
        heappush(heap, -y)
        heappushpop(heap, -y)
        minimisers.append(-heap[0])
    for i in range(len(row) - 2, -1, -1):
        minimisers[i] = min(minimisers[i], minimisers[i + 1])
    return minimisers


def tree_rows(_setup: Setup, bins: int) -> Found:
    """Trees by the formulas: the paper's error, Appendix B's in two steps, that of GLS, also with
    its best budgets."""
    plain = min(factorisations(bins), key=lambda b: plain_error(b, plain_shares(b)))
    binary = (2,) * round(log2(bins))
    best = best_tree(bins)
    trees = {
        "histogram": Tree((bins,), (1.0,), bins),
        "binary": Tree(binary, even(binary), bins),
        "best plain": Tree(plain, plain_shares(plain), bins),
        "best GLS": best,
    }
    for name, tree in trees.items():
        children, coverings = refined_errors(tree)
        yield Row(
            bins=bins, tree=name, branching=tree.branching, plain=plain_error(tree.branching, tree.shares),
            children_into_parents=children, both_coverings=coverings, gls=8 * tree.squared_error,
            gls_best_budgets=8 * cdf.tree_of(tree.branching, bins).squared_error,
        )  # fmt: skip


def theorem_rows(setup: Setup, _bins: int) -> Found:
    """Cases of statements: what each says, what is found, and whether that is so."""
    for section, statement, case, stated, seen, holds in (
        *_on_budgets(setup.rng("cdf-trees")),
        *_on_branching(),
    ):
        numbers = {"stated": float(stated), "found": float(seen), "holds": bool(holds)}
        source = f"{PAPER}, {section}"
        yield Row("-theorems", source=source, statement=statement, case=str(case), **numbers)


_Case = tuple[str, str, object, float, float, bool]
"""Section, statement, case, stated, found, holds."""


def _best(
    section: str, statement: str, case: object, best: float, others: Iterable[float]
) -> _Case:
    """Whether none of the others errs less."""
    least = min(others)
    return f"Theorem {section}", statement, case, best, least, least >= best * (1 - 1e-9)


def _on_budgets(rng: np.random.Generator) -> Iterator[_Case]:
    def drawn(height: int) -> list[float]:
        return list(map(float, rng.dirichlet(np.full(height, 9.0))))

    for b in ((256,), (16, 16), (2,) * 8, (4, 8, 8), (8, 4, 8), (3, 5, 7)):
        e = drawn(len(b))
        stated = plain_error(b, e)
        seen = float((8 / np.array(e) ** 2) @ digits(b).sum(axis=1))
        yield "Theorem IV.1", "the error of a tree", b, stated, seen, bool(np.isclose(stated, seen))
        others = (plain_error(b, drawn(len(b))) for _ in range(TRIED))
        yield _best(
            "IV.2", "the best budgets for a branching", b, plain_error(b, plain_shares(b)), others
        )
        real = np.array(e) ** 2 * (prod(b) / prod(e) ** 2) ** (1 / len(b))
        steps = (rng.normal(0, 0.2, len(b)) for _ in range(TRIED))
        moved = (real * np.exp(step - step.mean()) for step in steps)
        others = (plain_error(shares.tolist(), e) for shares in moved)
        yield _best(
            "IV.2", "the best real branching for budgets", b, plain_error(real.tolist(), e), others
        )
    for bins, height in ((27, 3), (256, 2), (4096, 3), (3**8, 8)):
        alike = (bins ** (1 / height),) * height
        parts = (rng.dirichlet(np.full(height, 3.0)) for _ in range(TRIED))
        others = (
            plain_error((3 * (bins / 3**height) ** part).tolist(), drawn(height)) for part in parts
        )
        statement = "even trees are best of branching >= 3"
        yield _best("IV.3", statement, (bins, height), plain_error(alike, even(alike)), others)
    for height in (3, 8):  # beside a tree with all branching and budget on a single level
        alike = (2,) * height
        best = plain_error(alike, even(alike))
        other = plain_error((2**height,), (1,))
        yield (
            "Theorem IV.3",
            "even trees are not best without that",
            alike,
            best,
            other,
            other < best,
        )
    for b_real in (2.0, 2.9, 3.1, 17.0):  # the Hessian of (exp d - 1) / x^2 at exp d = b and x = 1
        least = float(
            np.linalg.eigvalsh([[b_real, -2 * b_real], [-2 * b_real, 6 * (b_real - 1)]])[0]
        )
        yield (
            "Appendix A",
            "(b - 1) / e^2 is convex for b > 3",
            b_real,
            b_real - 3,
            least,
            (least > 0) == (b_real > 3),
        )


def _on_branching() -> Iterator[_Case]:
    fine = np.linspace(2, 50, 48_001)
    real = float(fine[((fine - 1) / np.log(fine) ** 3).argmin()])
    whole = min(range(2, 50), key=partial(real_tree_error, 9))
    yield (
        "Lemma IV.3",
        "the best real branching is about 16.8",
        "any K",
        16.8,
        real,
        abs(real - 16.8) < 0.05,
    )
    yield "Lemma IV.3", "the best integer branching is 17", "any K", 17, whole, whole == 17
    for bins in BINS:
        ranges = 2 * (bins - 1) ** 3
        histogram = plain_error((bins,), (1,))
        statement = "range queries err more than a histogram"
        yield "Lemmas III.1 and III.2", statement, bins, ranges, histogram, histogram < ranges
    for p, t in ((2, 8), (3, 6), (5, 5), (7, 4)):
        for h in range(1, t + 1):
            stated = (h - t % h) * p ** (t // h) + t % h * p ** (t // h + 1)
            least = min(sum(b) for b in factorisations(p**t) if len(b) == h)
            yield (
                "Theorem V.1",
                "exponents are as even as can be",
                (p, t, h),
                stated,
                least,
                stated == least,
            )
    for q in (2, 3, 5, 7, 11, 13):
        alike = min(plain_error(b, even(b)) for b in ((2,) * q, (2**q,)))
        (best, _) = best_even(2**q)
        yield "Lemma V.2", "unequal branching is best for 2^q", f"2^{q}", alike, best, best < alike
    for b, h in ((b, h) for h in range(1, 17) for b in range(2, 400) if b**h <= 2**16):
        _, height = best_even(b**h)
        holds = (b > 17 or height <= h) and (b < 17 or height >= h)
        yield (
            "Theorem V.2, Corollary V.2",
            "bounds on the best height",
            f"{b}^{h}",
            h,
            height,
            holds,
        )
    for p, m in ((17, 1), (17, 2), (17, 3), (19, 2), (23, 3), (101, 2)):
        _, height = best_even(p**m)
        yield (
            "Corollary V.1",
            "m is the best height of p^m from 17 on",
            f"{p}^{m}",
            m,
            height,
            height == m,
        )
    for bins, low, high in ((2**12, 2, 3), (2**16, 2, 4), (36**4, 4, 8)):
        _, height = best_even(bins)
        statement = f"the best height is {low} to {high}"
        yield "examples of Corollary V.2", statement, bins, high, height, low <= height <= high


def consistency_rows(setup: Setup, samples: int) -> Found:
    """Rows of Section VI: mean errors of a CDF with exact noise, in l1 and in l2 squared, as it is
    and made consistent. K = 17^2, two levels, epsilon 1, uniform samples."""
    tree = Tree((17, 17), (0.5, 0.5), 289)
    runs = min(setup.repetitions, RUNS_MAX)
    leaves = setup.rng(f"cdf-trees/{samples}").multinomial(
        samples, np.full(tree.bins, 1 / tree.bins)
    )
    noise = discrete_laplace(
        setup.bits(f"cdf-trees/{samples}"), np.full(tree.nodes * runs, 4)
    ).reshape(runs, -1)
    noisy = cdf.level_counts(tree, leaves) + noise
    parents = noisy[:, :17]
    children = noisy[:, 17:].reshape(-1, 17, 17)
    plain = (
        (np.cumsum(parents, axis=1) - parents)[..., None] + np.cumsum(children, axis=2)
    ).reshape(runs, -1)
    # the sum of a whole family is its parent's count
    plain[:, 16::17] = np.cumsum(parents, axis=1)
    plain[:, -1] = samples
    for name, counts in (
        ("plain", plain),
        ("GLS", np.rint(cdf.prefixes(tree, noisy, samples)).astype(np.int64)),
    ):
        projected = consistent_counts_l1(counts, samples), cdf.consistent_counts(counts, samples)
        for how, found in zip(("as it is", "in l1", "in l2"), (counts, *projected), strict=True):
            off = (found - np.cumsum(leaves)) / samples
            l1 = np.abs(off).sum(axis=1)
            l2 = (off**2).sum(axis=1)
            yield Row(
                "-consistency", samples=samples, estimate=name, consistent=how,
                l1=l1.mean(), l1_spread=l1.std() / np.sqrt(runs),
                l2_squared=l2.mean(), l2_squared_spread=l2.std() / np.sqrt(runs),
            )  # fmt: skip


def tree_conclude(_setup: Setup, tables: Tables) -> Results:
    """The paper's first figure, and its statements on trees, budgets and consistency."""
    bins = [2.0**i for i in range(2, 13)]
    errors = {
        "range queries": [2 * (k - 1) ** 3 for k in bins],
        "histogram": [4 * k * (k - 1) for k in bins],
        "binary tree": [4 * k * log2(k) ** 3 for k in bins],
        "17-ary, of a real height": [real_tree_error(k, 17) for k in bins],
        "best tree, GLS": [8 * best_tree(int(k)).squared_error for k in bins],
    }
    panel = Panel(
        "",
        "bins",
        "squared error x (n epsilon)\u00b2",
        [Curve(name, bins, of) for name, of in errors.items()],
        "xy",
    )
    yield Figure("cdf-trees", "Squared errors of CDFs over the number of bins", [panel])
    trees = tables[""]
    plain = {row.tree: row.plain for row in trees.where(bins=BINS[0])}
    ours = real_tree_error(BINS[0], 17)
    others = {"histogram": plain["histogram"], "binary": plain["binary"]}
    yield Finding(
        "tree-errors",
        ours < others["histogram"] < others["binary"],
        bins=BINS[0],
        ours=ours,
        **others,
    )
    refined = trees.column("both_coverings") / trees.column("plain")
    left = trees.column("gls") / trees.column("both_coverings")
    spans = {"refined": (refined.min(), refined.max()), "gls": (left.min(), left.max())}
    yield Finding("refined-errors", refined.max() < 0.5, **spans)
    yield Finding("gls-errors", left.max() < 1 + 1e-9, **spans)
    theorems = tables["-theorems"]
    for source, statement in dict.fromkeys((row.source, row.statement) for row in theorems):
        some = theorems.where(source=source, statement=statement)
        failing = [row.case for row in some if not row.holds]
        counts = {
            "held": len(some) - len(failing),
            "cases": len(some),
            "failing": ", ".join(failing),
        }
        yield Finding("tree-theorem", not failing, statement=statement, source=source, **counts)
    for samples in SAMPLES:
        raw, l1, l2 = tables["-consistency"].where(samples=samples, estimate="plain")
        agrees = max(l1.l1, l2.l1) < raw.l1 and max(l1.l2_squared, l2.l2_squared) < raw.l2_squared
        yield Finding("consistency", agrees, raw=raw, l1=l1, l2=l2)


def tree_points(_setup: Setup) -> Points:
    """Points of the computation: its kind, and the number of bins or samples."""
    return [*product([tree_rows], BINS), (theorem_rows, 0), *product([consistency_rows], SAMPLES)]


def rows_of(setup: Setup, measure: Callable[[Setup, int], Found], number: int) -> Found:
    """The rows of any kind of point."""
    return measure(setup, number)
