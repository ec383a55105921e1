"""One law for every arm: the time of an engine step.

A step in which j requests decode, each verifying 1 + k positions, lasts

    S(j) = [(a*(1 - s*exp(-V/v)))^r + (b*V)^r]^(1/r) + w*j*context + [k > 0]*(f + d*k) + t*j*k,   V = j*(1 + k)

a is the time to read the weights once, b the time to compute one position. r is the sharpness of the transition
between these two bounds. s and v are the saving of experts while few are touched. w is the time of a token of context; f, d
and t are the costs of drafting.
A prompt is read in a step with others: u*p more of computing, of which the share h of what fits behind the reading of weights
is hidden, and B more however many prompts, beside requests that decode. `step_queue` has the queue.

Costs are scalars; demands of requests, rates and numbers in flight broadcast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from breakeven.laws.arrays import FloatArray

LEAST = 1e-12
"""Smaller than every duration (s) and every share that has an effect."""


class CostsOfSteps(NamedTuple):
    """Costs of a step; scalars except the departures.

    Attributes:
        weights_s: a, the weights streamed once (s), above 0.
        position_s: b, computing one position (s), above 0.
        sharpness: r, at least 1: 1 adds the two bounds, a large one takes the larger.
        untouched: s, the share of the weights that a step of very few positions leaves unread, below 1.
        touching: v, positions after which all but a third of those are read, above 0.
        context_s: w, a token of context and decoding request (s).
        prompt_s: u, computing a prompt token (s).
        drafting_s: f, drafting at all (s).
        draft_s: d, each position drafted, however many requests draft (s).
        each_draft_s: t, a position drafted for one request (s).
        request_s: time of a request outside of steps (s).
        hidden: h, the share of a prompt's computing behind the reading of weights that costs nothing, 0 to 1.
        beside_s: B, what a step that reads prompts beside requests that decode takes more (s), however many prompts.
        departures: ln of the factor on a step at 1, 2, 4, ... positions, shape (knots,), with straight lines between over the
            logarithm of positions. They describe knees that no sharpness has.
    """

    weights_s: FloatArray
    position_s: FloatArray
    sharpness: FloatArray
    untouched: FloatArray
    touching: FloatArray
    context_s: FloatArray
    prompt_s: FloatArray
    drafting_s: FloatArray
    draft_s: FloatArray
    each_draft_s: FloatArray
    request_s: FloatArray
    hidden: FloatArray
    beside_s: FloatArray
    departures: FloatArray


class Tier(NamedTuple):
    """Drafting from a batch size on.

    Attributes:
        first: smallest number of decoding requests.
        drafted: k, positions drafted in a step for one request.
        tokens_per_step: E, at least 1.
        verified: how many of them are verified; None if all.
    """

    first: int
    drafted: FloatArray
    tokens_per_step: FloatArray
    verified: FloatArray | None = None

    @property
    def positions(self) -> FloatArray:
        """Positions that a step computes for one request."""
        return np.asarray(1.0 + (self.drafted if self.verified is None else self.verified))

    def each(self, change: Callable[[FloatArray], FloatArray]) -> Tier:
        """The tier with every array changed in the same way."""
        verified = None if self.verified is None else change(self.verified)
        return Tier(self.first, change(self.drafted), change(self.tokens_per_step), verified)


class Demand(NamedTuple):
    """Work that a request demands of the engine.

    Attributes:
        tiers: of its drafting: one tier; of a schedule several, with the first at 1.
        output_tokens: g, at least 1.
        context_tokens: mean tokens of context while it decodes.
        varied: 1 if answers differ in their lengths, else 0: clients of a closed loop then fall into step, and their prompts are
            read while nobody decodes.
    """

    tiers: tuple[Tier, ...]
    prompt_tokens: FloatArray
    output_tokens: FloatArray
    context_tokens: FloatArray
    varied: FloatArray = np.ones(())


_VARIED = 0.1
"""Standard deviation of the answers' lengths, over their mean, from which clients do not fall into step."""


def varied(output_tokens: FloatArray, output_tokens_sq: FloatArray) -> FloatArray:
    """1 if answers differ in their lengths, else 0, by the mean and the mean square of these; a mean square of 0 is not known."""
    return np.asarray(output_tokens_sq > (1.0 + _VARIED**2) * np.square(output_tokens), dtype=float)


def step_s(costs: CostsOfSteps, tier: Tier, context_tokens: FloatArray, decoding: FloatArray) -> FloatArray:
    """Duration (s) of a step in which `decoding` requests decode, drafted for as the tier says."""
    positions = decoding * tier.positions
    drafting = (tier.drafted > 0) * (costs.drafting_s + costs.draft_s * tier.drafted)
    of_each = costs.context_s * context_tokens + costs.each_draft_s * tier.drafted
    first, share = departure_shares(positions, costs.departures.size)
    departure = costs.departures[first] * (1.0 - share) + costs.departures[first + 1] * share
    whole = _bound(costs, positions).bound_s + drafting + of_each * decoding
    return np.asarray(whole * np.exp(departure))


SENSITIVE = (
    "weights_s",
    "position_s",
    "sharpness",
    "untouched",
    "touching",
    "context_s",
    "drafting_s",
    "draft_s",
    "each_draft_s",
)
"""Costs of which `step_sensitivities` has a row each, in this order."""


def step_sensitivities(
    costs: CostsOfSteps, tier: Tier, context_tokens: FloatArray, decoding: FloatArray
) -> FloatArray:
    """Sensitivities of a step's duration to each cost, d ln S / d ln(cost), stacked on a first axis in the order of `SENSITIVE`.

    Of `sharpness` it is d ln S / d ln(r - 1), of `untouched` d ln S / d logit(s): the unbounded forms in which they are fitted.
    """
    positions = decoding * tier.positions
    bound_s, memory_s, of_memory = _bound(costs, positions)
    r = costs.sharpness
    compute = costs.position_s * positions
    # ln B = ln(m^r + c^r)/r, with the logarithms taken of the ratio so that no power overflows.
    below = np.maximum(compute / bound_s, LEAST)
    mixed = of_memory * np.log(memory_s / bound_s) + (1.0 - of_memory) * np.log(below)
    unread = costs.weights_s * costs.untouched * np.exp(-positions / costs.touching)
    through_memory = of_memory * bound_s / memory_s
    drafts = tier.drafted > 0
    parts = (
        bound_s * of_memory,
        bound_s * (1.0 - of_memory),
        bound_s * mixed * (r - 1.0) / r,
        -through_memory * unread * (1.0 - costs.untouched),
        -through_memory * unread * positions / costs.touching,
        costs.context_s * context_tokens * decoding,
        drafts * costs.drafting_s,
        drafts * costs.draft_s * tier.drafted,
        costs.each_draft_s * tier.drafted * decoding,
    )
    whole = bound_s + parts[5] + parts[6] + parts[7] + parts[8]
    found = np.empty((len(parts), *np.shape(whole)))
    for row, part in enumerate(parts):
        found[row] = part / whole
    return found


def departure_shares(positions: FloatArray, knots: int) -> tuple[NDArray[np.intp], FloatArray]:
    """The two departures around a number of positions: the first one's index, and the second one's share."""
    place = np.clip(np.log2(np.maximum(positions, 1.0)), 0.0, knots - 1.0 - 1e-9)
    first = place.astype(np.intp)
    return first, np.asarray(place - first)


class PromptReading(NamedTuple):
    """Time that a prompt adds to a step (s), and its slopes in the order of `READ_BY`."""

    prompt_s: FloatArray
    slopes: tuple[FloatArray, ...]


READ_BY = ("weights_s", "position_s", "prompt_s", "hidden", "beside_s")
"""Costs that the slopes of reading a prompt refer to: by their logarithms, the logit of the hidden share, the last itself."""


def shared_steps(come: FloatArray) -> FloatArray:
    """Steps with prompts for each prompt, if so many come in a step on average."""
    come = np.maximum(come, LEAST)
    return np.asarray(-np.expm1(-come) / come)


def reading(
    costs: CostsOfSteps, demand: Demand, decoding: FloatArray, come: FloatArray | float = 0.0
) -> PromptReading:
    """A prompt read in a step in which `decoding` requests decode, and `come` prompts come on average.

    Weights that decoding waits for anyway need not be read again: part of the prompt's computing may hide behind them.
    """
    of_each = demand.tiers[0].positions
    for later in demand.tiers[1:]:
        of_each = np.where(decoding >= later.first - 0.5, later.positions, of_each)
    beside = demand.varied * np.minimum(decoding, 1.0) * shared_steps(np.asarray(come))
    positions = decoding * of_each
    compute = costs.position_s * positions
    prompt = costs.prompt_s * demand.prompt_tokens
    without = _bound(costs, positions)
    # The prompt counts as the positions that take as long to compute.
    whole = _bound(costs, positions + prompt / costs.position_s)
    of_compute = whole.bound_s * (1.0 - whole.of_memory) / np.maximum(compute + prompt, LEAST)
    saved = whole.bound_s - without.bound_s - prompt
    h = costs.hidden
    return PromptReading(
        np.asarray(prompt + h * saved + costs.beside_s * beside),
        (
            h * (whole.bound_s * whole.of_memory - without.bound_s * without.of_memory),
            h * (of_compute * compute - without.bound_s * (1.0 - without.of_memory)),
            (1.0 - h + h * of_compute) * prompt,
            h * (1.0 - h) * saved,
            beside,
        ),
    )


class _Bound(NamedTuple):
    """Reading weights and computing positions: what both take together, and the memory's part in it (1)."""

    bound_s: FloatArray
    memory_s: FloatArray
    of_memory: FloatArray


def _bound(costs: CostsOfSteps, positions: FloatArray) -> _Bound:
    # A fit may try weights that cost nothing, and a step takes some time.
    memory = np.maximum(
        costs.weights_s * (1.0 - costs.untouched * np.exp(-positions / costs.touching)), LEAST
    )
    compute = costs.position_s * positions
    larger = np.maximum(memory, compute)
    ratio = (np.minimum(memory, compute) / larger) ** costs.sharpness
    of_larger = 1.0 / (1.0 + ratio)
    bound = larger * (1.0 + ratio) ** (1.0 / costs.sharpness)
    return _Bound(bound, memory, np.where(memory >= compute, of_larger, 1.0 - of_larger))
