"""Fit the one law of all arms to their mean latencies, and to the means of TTFT where those were measured.

A few loads of three arms do not determine ten costs. Each cost therefore has a prior in the unbounded form that is fitted,
relative to the measured lone step. A cost that a sweep does not determine stays at its prior, whose width is in the bounds.
Priors of departures and of the levels of arms are centred at 0. The result is the most probable law with the covariance around it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from breakeven.arm import Arm
from breakeven.fitting.arms import ArmRows, beside_decodes, blocks_of, hides_prompts, lengths_of
from breakeven.fitting.observations import Observation
from breakeven.laws.acceptance_numbers import AcceptanceModel
from breakeven.laws.arrays import FloatArray
from breakeven.laws.latency import mean_kv_tokens
from breakeven.laws.step_law import Demand, Tier
from breakeven.methods import LOOKUP_METHODS
from breakeven.points.point import LIVE_TRAFFIC, Point
from breakeven.points.quality import waiting_share
from breakeven.prior.public_table import ServiceFacts
from breakeven.profile.document_checks import LARGEST_LOGARITHM
from breakeven.profile.fits import NOMINAL_OUTPUT_TOKENS, Lengths
from breakeven.profile.step_fit import (
    ADAPTIVE_LEVEL,
    ENGINE,
    KNOTS,
    LEVEL,
    UNKNOWN_LEVEL,
    ArmLoads,
    Layout,
    StepLaw,
    Verifying,
    nominal_yield,
)
from breakeven.profile.step_form import FormError, Gaps, Whereabouts, in_one_block
from breakeven.tiers import Schedule

_POSITIONS = 250.0
"""Positions whose computing takes as long as reading the weights once: 200 to 300 on the GPUs that serve language models."""

_CONTEXT = 1e5
"""Tokens of context whose reading takes as long as reading the weights: 1e5 for 8 billion parameters with grouped heads."""

_DEPARTURE_REACH = 1.0
"""Over how many doublings of the positions neighbouring departures are much the same."""

_USUAL_DEPARTURE, _DEPARTURE_SPREAD = 0.08, 0.6
"""Middle of the size of departures over positions (ln) before any row, and the spread of its logarithm."""

_TTFT = 0.05
"""Standard deviation of a mean TTFT around the law (ln): clients, proxies and chunks differ in what they count."""

_USUAL_NOISE, _NOISE_SPREAD = 0.02, 0.8
"""Middle of the standard deviation of one mean latency (ln) before any row, and the spread of its logarithm."""

_USUAL_FORM, _FORM_SPREAD = 0.012, 0.9
"""Middle of the size of departures (ln) before any row, and the spread of its logarithm."""

_REACHES = (0.7, 1.4, 2.8)
_FORMS = (0.003, 0.0055, 0.01, 0.015, 0.022, 0.033, 0.05, 0.075, 0.11, 0.16)
_SCATTERS = (0.002, 0.004, 0.007, 0.011, 0.016, 0.022, 0.03, 0.04, 0.055, 0.075, 0.1, 0.14, 0.2, 0.3)
"""Values that are tried for the reach and the size of departures, and for the noise of a row."""

_OF_PRIOR = 0.8
"""Share of the prior's width from which a cost comes from the prior."""

_ROUNDS = 40
_ROUGHLY, _SETTLED = 1e-2, 1e-4
"""Share of the cost below which a step gains nothing more: while scatter and bend are looked for, and at the end."""

_ROUNDING = 1e-12
"""Share of the largest variance that is added to each: more than rounding takes away, and less than has an effect."""
_SCATTER_FIGURES, _LEAST_FREEDOM = 4, 5
"""Figures of the scatter, each of which takes a degree of freedom, and how many the priors are worth."""

_SCATTER_ROUNDS, _SCATTER_SETTLED = 3, 0.05

_BLOCKS = (0.01, 0.04, 0.15)
_USUAL_BLOCK, _BLOCK_SPREAD = 0.03, 1.0
"""Tried sizes of the factor of a stretch of time (ln), middle of it before any row, and the spread of its logarithm."""


class _Bending(NamedTuple):
    """A prior of how steps bend as more positions share them.

    Attributes:
        sharpness, untouched: middle and standard deviation of these figures.
        departed: sizes of the departures over positions that are tried. The first is small enough to begin with: from a law
            that may bend anywhere a fit can end far off.
        unlikely: ln of how many times less probable it is before any row.
        beside: likewise of what a step with prompts beside decodes takes more (`BESIDE_S`).
    """

    sharpness: tuple[float, float]
    untouched: tuple[float, float]
    departed: tuple[float, ...]
    unlikely: float
    beside: tuple[float, float] = (0.0, 1e-3)


_BENT = _Bending((-0.7, 1.0), (-3.0, 1.2), (0.03, 0.06, 0.12, 0.24), 0.0)
_LINE = _Bending((-4.0, 0.7), (-5.0, 0.7), (0.004,), 5.0)
_OF_BENDING = ("sharpness", "untouched")
"""Steps that bend, and steps that are a line in the batch. Rows of one arm hardly tell a line from a bend that departures
cancel, and beyond them such a bend goes on: a line is believed if rows make it 150 times as probable."""


_DENSE = (-12.0, 0.01)
"""Middle and standard deviation of `untouched` of a model without experts: each step reads all weights."""

_BESIDE, _SHOWN, _WIDEST = math.log(3.0), 5.0, 500.0
"""Standard deviation of the logarithm of what a step with prompts beside decodes takes more, around `BESIDE_S`; by how much the
evidence (ln) must rise for it, as for a line; and the largest rise that counts."""

_LOG_ROUNDS, _LEAST_BESIDE = 3, 0.02
"""Rounds until a prior of a logarithm and the figure around which it is taken as straight agree, and the least such figure."""

_OTHER_PROMPTS = 1.5
"""Ratio of prompts from which they are of two lengths."""


class _Sweep(NamedTuple):
    """An arm's rows as the law takes them."""

    arm: Arm
    loads: ArmLoads
    latency_s: FloatArray
    ttft_s: FloatArray
    most: int
    places: Whereabouts
    errors: FloatArray
    blocks: FloatArray
    guessed: bool


class _Scatter(NamedTuple):
    """Scatter of rows around the law (ln).

    Attributes:
        noise: of the rows beyond the errors that they state, on average over its likely values.
        form: size of the departures over loads.
        block: of the factor that all windows of a stretch of time share.
        departed: size of the departures over positions.
        wider: root of the mean variance of the noise over `noise`: the factor by which bounds are wider.
        evidence: ln of the probability of the rows, whatever the figures and the scatter are.
    """

    noise: float
    form: FormError
    block: float
    departed: float
    wider: float
    evidence: float

    def root(self, sweeps: Sequence[_Sweep]) -> FloatArray:
        """Cholesky factor of the covariance of rows."""
        places = np.hstack([one.places for one in sweeps])
        shared = self.block**2 * in_one_block(np.hstack([one.blocks for one in sweeps]))
        alike = self.form.covariance(places, places) + shared
        return np.asarray(np.linalg.cholesky(alike + np.diag(self.of_rows(sweeps) ** 2)), dtype=float)

    def of_rows(self, sweeps: Sequence[_Sweep]) -> FloatArray:
        """Standard deviation of each row, which states an error of its own."""
        return np.hypot(self.noise, np.hstack([one.errors for one in sweeps]))


def fit_step_law(
    arms: Sequence[ArmRows], acceptance: Mapping[str, AcceptanceModel], near: StepLaw | None = None
) -> StepLaw | None:
    """The law; None without rows. Lengths and acceptance that no row has are guesses; predictions at the measured ones do not depend on them.

    `acceptance` is by family, for rows that do not count how many tokens a step yielded. `near` is a law of much the same rows
    of the same arms, from which the search starts.
    """
    if not arms:
        return None
    lengths = [lengths_of(one.rows) for one in arms]
    sweeps = [
        _sweep(one, acceptance, own.or_those_of(lengths), block, in_step=hides_prompts(arms))
        for one, own, block in zip(arms, lengths, blocks_of(arms), strict=True)
    ]
    families = tuple(dict.fromkeys(one.arm.family for one in sweeps if one.arm.k))
    layout = Layout(families, tuple(one.arm.name for one in sweeps))
    models = {row.point.model for one in arms for row in one.rows}
    dense = any(model and ServiceFacts.of_name(model).experts is False for model in models)
    bend, line = (one._replace(untouched=_DENSE) if dense else one for one in (_BENT, _LINE))
    prior = _Prior.of(layout, sweeps, bend)
    # Costs that trade places leave more than one valley; the deepest of those below two starts is taken.
    begin = (prior.center, _start(prior, sweeps)) if near is None else (np.array(near.figures),)
    bent = _fitted(layout, sweeps, bend, list({one.tobytes(): one for one in begin}.values()))
    # A line with the same costs, not with the costs of another valley: rows of one length determine many costs no better.
    bends = np.arange(layout.size) >= layout.first_departure
    bends[[ENGINE.index(one) for one in _OF_BENDING]] = True
    unbent = np.where(bends, _Prior.of(layout, sweeps, line).center, bent[0].figures)
    bending, (solved, scatter) = max(
        (bend, bent), (line, _fitted(layout, sweeps, line, (unbent,))), key=lambda one: one[1][1].evidence
    )
    prior = _Prior.of(layout, sweeps, bending).departing(layout, scatter.departed)
    solved = _solve(layout, prior, sweeps, solved, scatter, _SETTLED)
    prompts = np.concatenate([one.loads.demand.prompt_tokens for one in sweeps])
    if hides_prompts(arms):
        solved.covariance[ENGINE.index("beside_s"), ENGINE.index("beside_s")] = 1.0
    elif prompts.max() > _OTHER_PROMPTS * prompts.min():
        prior, (solved, scatter) = _beside_decodes(layout, sweeps, bending, prior, (solved, scatter))
    of_rows = scatter.wider * scatter.of_rows(sweeps)
    # Costs that rows leave nearly as wide as their prior.
    left = np.sqrt(np.diag(solved.covariance) / np.diag(prior.covariance()))
    return StepLaw(
        families,
        layout.arms,
        tuple(solved.figures.tolist()),
        # Noise and form grow by one factor: the estimates stay and their bounds widen.
        scatter.wider**2 * solved.covariance,
        math.sqrt(float(of_rows @ of_rows) / of_rows.size),
        max(int(solved.freedom) - _SCATTER_FIGURES, _LEAST_FREEDOM),
        replace(scatter.form, sd=scatter.wider * scatter.form.sd),
        Gaps(
            np.hstack([one.places for one in sweeps]),
            tuple((-solved.beside.gaps).tolist()),
            solved.beside.slopes,
            tuple(of_rows.tolist()),
            tuple(np.hstack([one.blocks for one in sweeps]).tolist()),
            scatter.wider * scatter.block if len(_tried_blocks(sweeps)) > 1 else 0.0,
        ),
        tuple(one for one, share in zip(layout.costs_named, left, strict=False) if share > _OF_PRIOR),
        max_num_seqs=next(
            (int(n) for arm in arms for row in arm.rows if (n := row.point.max_num_seqs)), None
        ),
    )


def _beside_decodes(
    layout: Layout, sweeps: Sequence[_Sweep], bending: _Bending, prior: _Prior, found: _Fit
) -> tuple[_Prior, _Fit]:
    """The law with what a step with prompts beside decodes takes more, if the rows show it; else without, and in doubt about it.

    Only prompts of two lengths tell it from a longer prompt. There are two valleys: they are compared by the evidence of latencies
    and TTFTs, whatever the figures are, around the most probable ones (Laplace). Undecided, the law without it keeps the
    distance of both as a doubt, by how probable the other one is.
    """
    (solved, scatter), at = found, ENGINE.index("beside_s")
    start, units = solved.figures.copy(), 1.0
    start[at] = units
    begin: FloatArray | _Solved = start
    for _ in range(_LOG_ROUNDS):
        # ln(units) has the prior; around these units it is that of the figure itself.
        bending = bending._replace(beside=(units * (1.0 - math.log(units)), units * _BESIDE))
        other = _Prior.of(layout, sweeps, bending).departing(layout, scatter.departed)
        begin = beside = _solve(layout, other, sweeps, begin, scatter, _ROUGHLY)
        before, units = units, max(float(beside.figures[at]), _LEAST_BESIDE)
        if abs(units / before - 1.0) < _SCATTER_SETTLED:
            break
    gained = _evidence(other, beside) - _evidence(prior, solved)
    if gained > _SHOWN and beside.figures[at] > 0:
        scatter = _likeliest(layout, other, sweeps, beside, bending)
        other = other.departing(layout, scatter.departed)
        return other, (_solve(layout, other, sweeps, beside, scatter, _SETTLED), scatter)
    apart = (beside.figures - solved.figures) / math.sqrt(1.0 + math.exp(min(-gained, _WIDEST)))
    return prior, (solved._replace(covariance=solved.covariance + np.outer(apart, apart)), scatter)


def _evidence(prior: _Prior, solved: _Solved) -> float:
    """Ln of the probability of all rows, less what laws under one scatter share."""
    volume = np.linalg.slogdet(prior.root)[1] + 0.5 * np.linalg.slogdet(solved.covariance)[1]
    return float(volume - 0.5 * solved.cost)


def _tried_blocks(sweeps: Sequence[_Sweep]) -> tuple[float, ...]:
    """Sizes that are tried for the factor of a stretch of time; next to nothing unless most rows share one with another.

    Of a few pairs the factor could not be told from the noise of all rows.
    """
    _, rows = np.unique(np.hstack([one.blocks for one in sweeps]), return_counts=True)
    return _BLOCKS if 2 * np.sum(rows[rows > 1]) > np.sum(rows) else (_ROUNDING,)


def _fitted(
    layout: Layout, sweeps: Sequence[_Sweep], bending: _Bending, starts: Sequence[FloatArray]
) -> tuple[_Solved, _Scatter]:
    """The most probable figures and scatter if steps bend like this, from the deepest valley below the starts."""
    prior = _Prior.of(layout, sweeps, bending)
    form = FormError(_USUAL_FORM, _REACHES[1])
    scatter = _Scatter(0.03, form, _tried_blocks(sweeps)[0], bending.departed[0], 1.0, 0.0)
    solved = min(
        (_solve(layout, prior, sweeps, one, scatter, _ROUGHLY) for one in starts), key=lambda one: one.cost
    )
    for _ in range(_SCATTER_ROUNDS):
        before, scatter = scatter, _likeliest(layout, prior, sweeps, solved, bending)
        prior = prior.departing(layout, scatter.departed)
        solved = _solve(layout, prior, sweeps, solved, scatter, _ROUGHLY)
        if abs(scatter.noise / before.noise - 1.0) < _SCATTER_SETTLED:
            break
    return solved, scatter


def latency_factors(law: StepLaw, rows: ArmRows, tokens_per_step: float) -> FloatArray:
    """Factor on the law's latency of each row if its E were `tokens_per_step` in place of its own; shape (rows,)."""
    sweep = _sweep(rows, {}, lengths_of(rows.rows), np.full(len(rows.rows), np.nan), in_step=False)
    demand = sweep.loads.demand
    even = demand._replace(
        tiers=tuple(
            tier._replace(tokens_per_step=np.full_like(tier.tokens_per_step, tokens_per_step))
            for tier in demand.tiers
        )
    )
    figures = np.array(law.figures)
    own_s, even_s = (
        law.answers(
            figures, rows.arm.family, rows.arm.name, sweep.loads._replace(demand=one), sweep.most
        ).latency_s
        for one in (demand, even)
    )
    return np.asarray(even_s / own_s)


_Fit = tuple["_Solved", _Scatter]


class _Beside(NamedTuple):
    """The law beside the rows: ln(law/measured) of latencies, and of TTFTs where those were measured, with slopes by the figures."""

    gaps: FloatArray
    slopes: FloatArray
    ttft_gaps: FloatArray
    ttft_slopes: FloatArray


class _Solved(NamedTuple):
    """The most probable law, and the degrees of freedom that the rows leave; its cost has priors included, in standard deviations."""

    figures: FloatArray
    covariance: FloatArray
    cost: float
    freedom: float
    beside: _Beside


def _likeliest(
    layout: Layout, prior: _Prior, sweeps: Sequence[_Sweep], solved: _Solved, bending: _Bending
) -> _Scatter:
    """The scatter under which the rows are most probable, whatever the figures are.

    The figures are integrated out around the found ones, so what they follow is not taken for a small noise.
    """
    slopes = solved.beside.slopes
    gaps = slopes @ (solved.figures - prior.center) - solved.beside.gaps
    places = np.hstack([one.places for one in sweeps])
    stated = np.diag(np.hstack([one.errors for one in sweeps]) ** 2)
    noise_squares = np.square(_SCATTERS)
    of_noise = _log_shares(_SCATTERS, _USUAL_NOISE, _NOISE_SPREAD)
    of_form = _log_shares(_FORMS, _USUAL_FORM, _FORM_SPREAD) - math.log(len(_REACHES))
    of_departed = _log_shares(bending.departed, _USUAL_DEPARTURE, _DEPARTURE_SPREAD) - bending.unlikely
    one_block = in_one_block(np.hstack([one.blocks for one in sweeps]))
    blocks = _tried_blocks(sweeps)
    of_blocks = _log_shares(blocks, _USUAL_BLOCK, _BLOCK_SPREAD)
    tried: list[tuple[float, float, float, float]] = []
    likely: list[FloatArray] = []
    for departed, of_size in zip(bending.departed, of_departed, strict=True):
        of_prior = stated + slopes @ prior.departing(layout, departed).covariance() @ slopes.T
        for block, of_block, reach in (
            (*pair, reach) for pair in zip(blocks, of_blocks, strict=True) for reach in _REACHES
        ):
            shares, wide = of_size + of_block, of_prior + block**2 * one_block
            alike = FormError(1.0, reach).covariance(places, places)
            # Shapes: forms, noises, rows.
            spread, axes = np.linalg.eigh(wide + np.square(_FORMS)[:, None, None] * alike)
            squares = np.maximum(spread, 0.0)[:, None, :] + noise_squares[:, None]
            across = np.square(gaps @ axes)[:, None, :]
            misfit = np.sum(across / squares + np.log(squares), axis=-1)
            likely.extend(of_noise + (of_form + shares)[:, None] - 0.5 * misfit)
            tried.extend((sd, reach, departed, block) for sd in _FORMS)
    weights = np.exp(np.array(likely) - np.max(likely))
    evidence = float(np.max(likely) + math.log(weights.sum()))
    weights /= weights.sum()
    of_rows = weights.sum(axis=0)
    noise = math.exp(float(of_rows @ np.log(_SCATTERS)))
    sd, reach, departed, block = np.exp(weights.sum(axis=1) @ np.log(tried)).tolist()
    wider = math.sqrt(float(of_rows @ noise_squares)) / noise
    return _Scatter(noise, FormError(sd, reach), block, departed, wider, evidence)


def _log_shares(tried: Sequence[float], middle: float, spread: float) -> FloatArray:
    """Logarithms of the probabilities of values whose logarithm has a normal prior; they add up to 1."""
    shares = np.exp(-0.5 * np.square(np.log(np.array(tried) / middle) / spread))
    return np.asarray(np.log(shares / shares.sum()))


class _Prior(NamedTuple):
    """Prior of the figures: the values before any row, and R with R'R the inverse covariance."""

    center: FloatArray
    root: FloatArray

    @classmethod
    def of(cls, layout: Layout, sweeps: Sequence[_Sweep], bending: _Bending) -> _Prior:
        """The priors of an engine whose lone step was measured, and whose steps bend like this."""
        # A step at the lowest load, of the arm without speculation where there is one.
        plain = [one for one in sweeps if not one.arm.k] or list(sweeps)
        lowest = min(plain, key=lambda one: float(one.loads.inflight.min()))
        lone_s = float(_mean_steps_s(lowest)[np.argmin(lowest.loads.inflight)])
        position_s = lone_s / _POSITIONS
        # Center and standard deviation of each, in the form that is fitted.
        center = [
            *(math.log(0.85 * lone_s), math.log(position_s)),
            *(bending.sharpness[0], bending.untouched[0], math.log(12.0)),
            *(math.log(lone_s / _CONTEXT), 0.0, math.log(0.3 * lone_s), 0.0, bending.beside[0]),
        ]
        width = [1.0, 1.5, bending.sharpness[1], bending.untouched[1], 1.0, 1.5, 0.6, 1.5, 1.5]
        width += [bending.beside[1]]
        for family in layout.families:
            lookup = any(one.arm.method in LOOKUP_METHODS for one in sweeps if one.arm.family == family)
            shares = (0.02, 0.003) if lookup else (0.06, 0.05)
            center += [math.log(share * lone_s) for share in shares] + [math.log(0.1 * position_s)]
            width += [1.5, 1.2, 1.5]
        arms = len(layout.arms)
        inverse = np.zeros((layout.size, layout.size))
        levels = [
            UNKNOWN_LEVEL if one.guessed else ADAPTIVE_LEVEL if one.arm.adaptive else LEVEL for one in sweeps
        ]
        spread = np.array([*width, *levels])
        inverse[: spread.size, : spread.size] = np.diag(spread**-2)
        inverse[spread.size :, spread.size :] = np.linalg.inv(_departures(bending.departed[0]))
        return cls(
            np.array([*center, *[0.0] * (arms + KNOTS)]),
            np.asarray(np.linalg.cholesky(inverse).T, dtype=float),
        )

    def departing(self, layout: Layout, sd: float) -> _Prior:
        """The prior with another size of the departures over positions."""
        root = self.root.copy()
        inverse = np.linalg.inv(_departures(sd))
        root[layout.first_departure :, layout.first_departure :] = np.linalg.cholesky(inverse).T
        return _Prior(self.center, root)

    def covariance(self) -> FloatArray:
        """Covariance of the figures before any row, shape (figures, figures)."""
        half = np.linalg.inv(self.root)
        return np.asarray(half @ half.T)


def _departures(sd: float) -> FloatArray:
    """Covariance of the departures at 1, 2, 4, ... positions."""
    apart = np.subtract.outer(np.arange(KNOTS), np.arange(KNOTS)) / _DEPARTURE_REACH
    return np.asarray(sd**2 * (np.exp(-0.5 * apart**2) + 1e-5 * np.eye(KNOTS)))


def _mean_steps_s(sweep: _Sweep) -> FloatArray:
    """Mean duration of a request's steps at each load, with what prompts add to them."""
    tier, demand = sweep.loads.demand.tiers[0], sweep.loads.demand
    return np.asarray(sweep.latency_s / (1.0 + (demand.output_tokens - 1.0) / tier.tokens_per_step))


def _start(prior: _Prior, sweeps: Sequence[_Sweep]) -> FloatArray:
    """The figures from which the fit starts: the priors, but for a position as dear as the steepest sweep shows.

    From a position that is much too cheap the fit can end where the context of requests takes its place.
    """
    slopes = [0.0]
    for one in sweeps:
        positions = one.loads.inflight * one.loads.demand.tiers[0].positions
        low, high = int(np.argmin(positions)), int(np.argmax(positions))
        if positions[high] > positions[low]:
            took = _mean_steps_s(one)
            slopes.append(float((took[high] - took[low]) / (positions[high] - positions[low])))
    start = prior.center.copy()
    at = ENGINE.index("position_s")
    start[at] = max(start[at], math.log(max(0.5 * max(slopes), 1e-12)))
    return start


def _solve(
    layout: Layout,
    prior: _Prior,
    sweeps: Sequence[_Sweep],
    begin: FloatArray | _Solved,
    scatter: _Scatter,
    settled: float,
) -> _Solved:
    """The most probable figures, their covariance and the rows beside them, from figures to begin with.

    Levenberg and Marquardt's steps with the law's own derivatives, which are exact but for what the first token's share
    moves; the residuals decide, so an inexact derivative costs a step and no accuracy.
    """
    unscattered = np.linalg.inv(scatter.root(sweeps))
    ttft_noise = math.hypot(_TTFT, 2.0 * scatter.noise)

    def system(figures: FloatArray, rows: _Beside) -> tuple[FloatArray, FloatArray]:
        """Residuals of latencies, of TTFTs and of the prior, in standard deviations, and their slopes."""
        gaps = (unscattered @ rows.gaps, rows.ttft_gaps / ttft_noise, prior.root @ (figures - prior.center))
        slopes = (unscattered @ rows.slopes, rows.ttft_slopes / ttft_noise, prior.root)
        return np.concatenate(gaps), np.concatenate(slopes)

    figures = begin.figures if isinstance(begin, _Solved) else begin
    beside = begin.beside if isinstance(begin, _Solved) else _beside(layout, sweeps, begin)
    residuals, slopes = system(figures, beside)
    cost, damping = float(residuals @ residuals), 1e-3
    for _ in range(_ROUNDS):
        normal, pull = slopes.T @ slopes, slopes.T @ residuals
        while True:
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), pull)
            tried = np.clip(figures - np.clip(step, -1.0, 1.0), -LARGEST_LOGARITHM, LARGEST_LOGARITHM)
            rows = _beside(layout, sweeps, tried)
            found = system(tried, rows)
            next_cost = float(found[0] @ found[0])
            # Where the slopes themselves promise no more than what is settled, no shorter step will gain it.
            if next_cost <= cost or damping > 1e6 or step @ pull < _SETTLED * max(cost, 1.0):
                break
            damping *= 10.0
        if not next_cost <= cost:
            break
        gained = cost - next_cost
        figures, beside, (residuals, slopes), cost = tried, rows, found, next_cost
        damping = max(damping / 10.0, 1e-9)
        if gained < settled * max(cost, 1.0):
            break
    # The inverse of slopes' @ slopes, by a factor: inverted itself, it is not symmetric where rows contradict each other.
    half = np.linalg.inv(np.linalg.qr(slopes, mode="r"))
    covariance = np.asarray(half @ half.T, dtype=float)
    # Where rows contradict each other, rounding may leave a variance below 0.
    covariance += _ROUNDING * np.diag(covariance).max() * np.eye(figures.size)
    of_rows = slopes[: beside.gaps.size]
    used = float(np.trace(covariance @ of_rows.T @ of_rows))
    return _Solved(figures, covariance, cost, max(of_rows.shape[0] - used, 0.0), beside)


def _beside(layout: Layout, sweeps: Sequence[_Sweep], figures: FloatArray) -> _Beside:
    parts = []
    for one in sweeps:
        answers = layout.answers(figures, one.arm.family, one.arm.name, one.loads, one.most)
        known = ~np.isnan(one.ttft_s)
        first = np.log(answers.ttft_s[known] / one.ttft_s[known]), answers.of_ttft[known]
        parts.append((np.log(answers.latency_s / one.latency_s), answers.of_latency, *first))
    return _Beside(*map(np.concatenate, zip(*parts, strict=True)))


def _sweep(
    one: ArmRows,
    acceptance: Mapping[str, AcceptanceModel],
    usual: Lengths,
    blocks: FloatArray,
    *,
    in_step: bool,
) -> _Sweep:
    points = [row.point for row in one.rows]
    usual_prompt, usual_output = usual.prompt_tokens or 1.0, usual.output_tokens or NOMINAL_OUTPUT_TOKENS
    output = np.array([point.output_tokens or usual_output for point in points], dtype=float)
    squares = np.array([point.output_tokens_sq or 0.0 for point in points])
    prompt = np.array([point.prompt_tokens or usual_prompt for point in points], dtype=float)
    running = np.array([_running_share(row) for row in one.rows])
    limit = min(point.max_num_seqs or math.inf for point in points)
    inflight = running * [row.inflight for row in one.rows]
    apart = np.array([beside_decodes(point) for point in points], dtype=float)
    demand = Demand(
        _tiers(one, acceptance.get(one.arm.family)),
        prompt,
        output,
        mean_kv_tokens(prompt, output, np.maximum(squares, output**2)),
        apart,
    )
    # Clients in step ask together, and the law knows no budget of tokens by which an engine reads so many prompts. Clients of
    # an arm that drafts differ in their steps.
    queued = (inflight > 1.5) & (squares > 0) & (in_step and one.arm.k == 0)
    # In an open loop some wait for a place, which the law's first tokens do not.
    closed = np.array([point.closed for point in points])
    crowded = ~closed & (inflight + 3.0 * np.sqrt(inflight) > limit)
    return _Sweep(
        one.arm,
        ArmLoads(
            demand,
            closed,
            np.array([row.carried_rps for row in one.rows]),
            inflight,
            Verifying.of(
                one.arm,
                acceptance.get(one.arm.family),
                zip(inflight.tolist(), (point.tokens_per_step for point in points), strict=True),
            )
            if one.arm.adaptive
            else None,
        ),
        running * [row.latency_s for row in one.rows],
        np.where(
            queued | (running < 1.0) | crowded,
            math.nan,
            [point.ttft_mean_s or math.nan for point in points],
        ),
        int(min(max(64.0, 3.0 * float(inflight.max()) + 60.0), 2048.0, max(limit, 2.0))),
        Whereabouts.of(
            one.arm, np.minimum(running * [row.others for row in one.rows], limit - 1.0), prompt, output
        ),
        _stated_errors(points),
        blocks,
        bool(one.arm.k)
        and one.arm.family not in acceptance
        and not all(point.tokens_per_step for point in points),
    )


def _running_share(row: Observation) -> float:
    """Share of a row's requests in flight that the law takes for those in steps.

    What waits for a place in the batch is in no step: of the latency as large a share as of the requests in flight (Little).
    The queue of an open loop is the law's own if it has the limit.
    """
    limit = row.point.max_num_seqs
    if limit is None:
        return 1.0 - waiting_share(row.point, row.inflight)
    return min(limit / row.inflight, 1.0) if row.point.closed else 1.0


def _stated_errors(points: Sequence[Point]) -> FloatArray:
    """Error of each row as it states it, if that is what its own lengths and acceptance leave: of live traffic.

    A load driver's error holds how acceptance differs between requests, which a row's own E takes off again. Of rows of
    which some state an error, the others are no surer than these: too few answers tell none.
    """
    stated = [point.relative_error if point.text_source == LIVE_TRAFFIC else None for point in points]
    unknown = max((one for one in stated if one is not None), default=0.0)
    return np.array([unknown if one is None else one for one in stated])


def _tiers(one: ArmRows, model: AcceptanceModel | None) -> tuple[Tier, ...]:
    def accepted(k: int) -> float:
        return model.at(k).value if model else nominal_yield(k)

    arm, points = one.arm, [row.point for row in one.rows]
    if points[0].schedule is None or arm.adaptive:
        yielded = [point.tokens_per_step or accepted(arm.k) if arm.k else 1.0 for point in points]
        drafted = [
            float(arm.k) if point.drafted_per_step is None else point.drafted_per_step for point in points
        ]
        return (Tier(1, np.array(drafted), np.array(yielded)),)
    ones = np.ones(len(points))
    return tuple(
        Tier(first, k * ones, accepted(k) * ones)
        for first, k in Schedule.parse(points[0].schedule, "schedule").tiers
    )
