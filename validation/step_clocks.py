"""Durations of the second engine's steps: from models of machines, not from formulas of a law.

Numbers are seconds. None of them has the form of the product's laws: bounds that give way abruptly, positions padded to
the sizes of CUDA graphs, cores that run out, experts of unequal popularity, kinks and jumps.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from functools import cache

from breakeven_sim.engine.configuration import StepClock
from breakeven_sim.engine.costs import default_document

_GRAPHS = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))


@cache
def _sizes(width: int) -> list[int]:
    rounded = {-(-size // width) * width for size in _GRAPHS}
    return sorted(size for size in rounded if size <= _GRAPHS[-1])


def padded(decoding: int, k: int) -> int:
    """Positions that a CUDA graph runs for requests of k + 1 each: vLLM 0.32 captures its sizes in multiples of k + 1, to 512."""
    positions, sizes = decoding * (k + 1), _sizes(k + 1)
    return sizes[bisect.bisect_left(sizes, positions)] if 0 < positions <= sizes[-1] else positions


@dataclass(frozen=True, slots=True)
class Drafting:
    """Costs of a drafter in a step.

    Attributes:
        fixed_s: of drafting at all.
        each_s: of each position drafted; 0 for a drafter that makes all of them in one pass.
        request_s: of each position and request.
    """

    fixed_s: float
    each_s: float = 0.0
    request_s: float = 0.0

    def cost_s(self, decoding: int, k: int) -> float:
        """Seconds of a step in which some decode."""
        return self.fixed_s + k * (self.each_s + decoding * self.request_s) if k and decoding else 0.0


@dataclass(frozen=True, slots=True)
class DenseClock:
    """Kernels of two kinds, each bound by its memory stream or by arithmetic, after a launch; positions are padded.

    Attributes:
        launch_s: before anything runs.
        stream_s: reading all weights.
        token_s: arithmetic of one position.
        context_s: reading one token of context.
        drafting: the drafter.
        heavy: share of the weights in kernels that reach the arithmetic bound early, and by how much.
    """

    launch_s: float
    stream_s: float
    token_s: float
    context_s: float
    drafting: Drafting
    heavy: tuple[float, float] = (0.6, 1.3)

    def step_s(self, decoding: int, k: int, context: float, prompt: int) -> float:
        """Duration of a step (`StepTimer`)."""
        # With prompts among them a step runs without graphs, so that nothing is padded.
        tokens = decoding * (k + 1) + prompt if prompt else padded(decoding, k)
        share, early = self.heavy
        late = (1.0 - share * early) / (1.0 - share)
        flops = tokens * self.token_s
        kernels = share * max(self.stream_s, early * flops) + (1.0 - share) * max(self.stream_s, late * flops)
        return self.launch_s + kernels + self.context_s * context + self.drafting.cost_s(decoding, k)


@dataclass(frozen=True, slots=True)
class RooflineClock:
    """One bound or the other: weights and context are streamed, or positions are computed.

    Attributes:
        stream_s, token_s, context_s, drafting: as of `DenseClock`.
    """

    stream_s: float
    token_s: float
    context_s: float
    drafting: Drafting

    def step_s(self, decoding: int, k: int, context: float, prompt: int) -> float:
        """Duration of a step (`StepTimer`)."""
        tokens = decoding * (k + 1) + prompt
        bound = max(self.stream_s + self.context_s * context, self.token_s * tokens)
        return bound + self.drafting.cost_s(decoding, k)


@dataclass(frozen=True, slots=True)
class CoreClock:
    """A machine of few cores: almost linear, and steeper once the cores are all taken.

    Attributes:
        base_s: of a step.
        token_s: of a decoded position.
        cores: positions until they contend.
        contended: factor on each further position.
        prompt_s: of a prompt token; matrices of many rows are cheaper.
        context_s, drafting: as of `DenseClock`.
    """

    base_s: float
    token_s: float
    cores: int
    contended: float
    prompt_s: float
    context_s: float
    drafting: Drafting

    def step_s(self, decoding: int, k: int, context: float, prompt: int) -> float:
        """Duration of a step (`StepTimer`)."""
        tokens = decoding * (k + 1)
        over = max(tokens - self.cores, 0)
        positions = self.token_s * (tokens + (self.contended - 1.0) * over) + self.prompt_s * prompt
        return self.base_s + positions + self.context_s * context + self.drafting.cost_s(decoding, k)


@dataclass(frozen=True)
class ExpertClock:
    """A mixture of experts: each one touched is read once, and popular ones are touched first.

    Attributes:
        base_s: all that is read or launched in any step.
        read_s: reading all experts.
        experts, chosen: experts of a layer, and how many of them a position takes.
        skew: exponent of the experts' popularity over their rank; 0: all the same.
        token_s, context_s, drafting: as of `DenseClock`.
    """

    base_s: float
    read_s: float
    experts: int
    chosen: int
    skew: float
    token_s: float
    context_s: float
    drafting: Drafting
    _shares: list[float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        weights = [(rank + 1.0) ** -self.skew for rank in range(self.experts)]
        odds = [min(self.chosen * weight / sum(weights), 1.0) for weight in weights]
        shares = [sum(1.0 - (1.0 - odd) ** tokens for odd in odds) / self.experts for tokens in range(1025)]
        object.__setattr__(self, "_shares", shares)

    def step_s(self, decoding: int, k: int, context: float, prompt: int) -> float:
        """Duration of a step (`StepTimer`)."""
        tokens = decoding * (k + 1) + prompt
        touched = self._shares[tokens] if tokens < len(self._shares) else 1.0
        bound = max(self.read_s * touched, self.token_s * tokens)
        return self.base_s + bound + self.context_s * context + self.drafting.cost_s(decoding, k)


@dataclass(frozen=True, slots=True)
class KneeClock:
    """A line with a sharp change of slope at a number of decoding requests.

    Attributes:
        base_s: of a step.
        request_s: of a decoding request below the knee.
        knee: where the slope changes.
        steeper: slope beyond, over the one before.
        position_share: what a drafted position costs over a request's own one.
        prompt_s, context_s, drafting: as of `CoreClock`.
    """

    base_s: float
    request_s: float
    knee: int
    steeper: float
    position_share: float
    prompt_s: float
    context_s: float
    drafting: Drafting

    def step_s(self, decoding: int, k: int, context: float, prompt: int) -> float:
        """Duration of a step (`StepTimer`)."""
        over = max(decoding - self.knee, 0)
        requests = self.request_s * (decoding + (self.steeper - 1.0) * over)
        work = requests * (1.0 + self.position_share * k) + self.prompt_s * prompt
        return self.base_s + work + self.context_s * context + self.drafting.cost_s(decoding, k)


@dataclass(frozen=True, slots=True)
class RegimeClock:
    """Full graphs up to some positions; beyond, and with prompts, pieces of a graph and a jump.

    Attributes:
        base_s: of a step in a full graph.
        graph_token_s: of a position in a full graph.
        positions: the largest full graph.
        jump_s: what leaving it costs.
        token_s, context_s, drafting: as of `DenseClock`.
    """

    base_s: float
    graph_token_s: float
    positions: int
    jump_s: float
    token_s: float
    context_s: float
    drafting: Drafting

    def step_s(self, decoding: int, k: int, context: float, prompt: int) -> float:
        """Duration of a step (`StepTimer`)."""
        tokens = decoding * (k + 1)
        rest = self.context_s * context + self.drafting.cost_s(decoding, k)
        if not prompt and tokens <= self.positions:
            return self.base_s + self.graph_token_s * padded(decoding, k) + rest
        return self.base_s + self.jump_s + self.token_s * (tokens + prompt) + rest


@cache
def _costs_of(gpu: str, method: str, longest: int) -> StepClock:
    return StepClock(default_document().for_gpu(gpu, "validation"), method if longest else None, longest)


@dataclass(frozen=True, slots=True)
class SimulatedClock:
    """The costs of the product's own simulated engine on a GPU: the one clock here with the form of its laws.

    Attributes:
        gpu: product name, as in the default cost document.
        method: of the drafter.
    """

    gpu: str
    method: str

    def step_s(self, decoding: int, k: int, context: float, prompt: int) -> float:
        """Duration of a step (`StepTimer`)."""
        costs = _costs_of(self.gpu, self.method, k)
        return costs.seconds(k, decoding, k * decoding, round(context), prompt)
