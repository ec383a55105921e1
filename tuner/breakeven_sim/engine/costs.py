"""Costs of a simulated engine: one JSON document, checked when read, with a unit in every name.

The document describes one engine, or one per GPU class under `gpus`; `docs/engine-costs.md` is generated from
the models here. The defaults (`default_costs.json`) are an 8B dense model on one A100 or H100, each number with
its source.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from breakeven.errors import InputError
from breakeven.intake import file_text, json_value, kind_of, wrong_field

COSTS_VARIABLE = "BREAKEVEN_SIM_COSTS"
GPU_VARIABLE = "BREAKEVEN_SIM_GPU"
DEFAULT_GPU = "NVIDIA-H100-80GB-HBM3"

_Share = Annotated[float, Field(ge=0, le=1)]
_Seconds = Annotated[float, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Experts(_Strict):
    """A mixture of experts: a step reads the experts that its tokens are routed to, each token to its own ones by chance."""

    all_s: _Seconds = Field(description="seconds that a step takes longer when it reads all routed experts")
    share_per_token: float = Field(
        gt=0, le=1, description="share of the experts that one token is routed to: 8 of 128 are 0.0625"
    )


class StepTime(_Strict):
    """Duration of one engine step: a sum of what the step contains."""

    base_s: float = Field(
        gt=0, description="seconds of a step whatever it contains: weights read once, launch overhead"
    )
    per_token_s: _Seconds = Field(
        description="seconds per decode token verified, drafts included: a step of B requests that verify k drafts each holds B*(k+1)"
    )
    per_kv_token_s: _Seconds = Field(
        default=0.0,
        description="seconds per token of context that the decoding requests of the step attend to",
    )
    per_prefill_token_s: _Seconds = Field(
        default=0.0, description="seconds per prompt token computed in the step"
    )
    beside_s: _Seconds = Field(
        default=0.0,
        description="seconds more of a step that computes prompts beside requests that decode: it runs outside the full CUDA graphs",
    )
    experts: Experts | None = Field(default=None, description="of a mixture of experts; null: a dense model")


class GpuMemory(_Strict):
    """Source of the KV pool's size: `(device_gib * --gpu-memory-utilization - resident_gib) / kv_bytes_per_token`."""

    device_gib: float = Field(gt=0, description="GiB of device memory, all GPUs of the engine together")
    resident_gib: float = Field(
        ge=0, description="GiB taken by weights, activations and graphs before the KV pool"
    )
    kv_bytes_per_token: float = Field(gt=0, description="bytes of KV cache per token of context")


class DefaultLimits(_Strict):
    """Limits that vLLM chooses for this GPU if the command line has none."""

    max_num_seqs: int = Field(gt=0, description="requests in one step (--max-num-seqs)")
    max_num_batched_tokens: int = Field(gt=0, description="tokens in one step (--max-num-batched-tokens)")
    max_model_len: int = Field(
        gt=0, description="tokens of prompt and output of one request (--max-model-len)"
    )


class Startup(_Strict):
    """Seconds from the process's start to its first answer."""

    base_s: _Seconds = Field(description="seconds to load, compile and capture without speculation")
    drafter_s: _Seconds = Field(default=0.0, description="seconds more with any speculative method")


class DraftTime(_Strict):
    """Seconds that drafting adds to a step of a speculating engine."""

    flat_s: _Seconds = Field(
        default=0.0, description="seconds per step whatever k is: one drafter pass, or the lookup"
    )
    per_position_s: _Seconds = Field(
        default=0.0, description="seconds per draft position: a step costs k times this"
    )
    per_draft_token_s: _Seconds = Field(
        default=0.0, description="seconds per drafted token, over all requests"
    )


class Text(_Strict):
    """How well drafts fit the text: stretches of easy and hard text (a two-point length-biased mixture).

    A step that starts in a stretch with rate a has its first i drafts accepted with probability
    a^i * exp(-depth_decay*i*(i-1)/2).
    """

    easy_rate: _Share = Field(description="probability that the first draft is accepted in easy text")
    hard_rate: _Share = Field(description="the same in hard text")
    easy_share: _Share = Field(description="share of the output tokens that are easy text")
    mean_easy_stretch_tokens: float = Field(
        default=60.0,
        ge=1,
        description="mean length of an easy stretch, tokens (geometric); hard ones follow from the share",
    )
    depth_decay: float = Field(
        default=0.0, ge=0, le=1, description="per position: how fast the drafter's quality falls"
    )
    familiar_context_tokens: float | None = Field(
        default=None,
        gt=0,
        description="context beyond which all text is hard: drafters are trained on texts of some length; null: no limit",
    )
    easy_match: _Share = Field(
        default=1.0, description="probability that a step in easy text drafts at all (lookup methods)"
    )
    hard_match: _Share = Field(
        default=1.0, description="the same in hard text; small for n-gram and suffix lookup"
    )


class BrokenAnswers(_Strict):
    """Faults of a method: it answers otherwise than the model would, as a drafter that spoils a cache does."""

    share: _Share = Field(default=0.0, description="share of the requests that are answered wrongly")
    from_token: int = Field(default=0, ge=0, description="position of the answer from which it is wrong")
    from_request: int = Field(
        default=0, ge=0, description="requests that the engine answers rightly before any is answered wrongly"
    )
    kind: Literal["wrong", "loop", "empty"] = Field(
        default="wrong",
        description="wrong: the model would not choose some tokens; loop: four tokens again and again; empty: nothing",
    )
    grammar_share: _Share = Field(
        default=0.0, description="share of the answers in demanded JSON that break off before their end"
    )


class Method(_Strict):
    """One speculative method (or one drafter of it) on this engine."""

    draft: DraftTime = Field(default=DraftTime(), description="what drafting costs")
    text: Text = Field(description="what gets accepted")
    kv_pool_share: _Share = Field(
        default=0.0, lt=1, description="share of the KV pool that the drafter takes"
    )
    broken_answers: BrokenAnswers | None = Field(
        default=None, description="faults of its answers; null: it answers as the model does"
    )


class EngineCosts(_Strict):
    """One engine: a model on a GPU class, with and without speculation."""

    description: str = Field(default="", description="what this engine stands for, in words")
    step: StepTime = Field(description="duration of one engine step")
    memory: GpuMemory = Field(description="the KV pool")
    limits: DefaultLimits = Field(description="limits where the command line names none")
    startup: Startup = Field(description="time until the engine answers")
    methods: dict[str, Method] = Field(
        default={},
        description="by vLLM's method name, or `method:drafter` for one drafter model of that method",
    )
    zero_drafts_overhead: float = Field(
        default=0.0,
        ge=0,
        description="fraction by which a step is longer when a speculating engine is scheduled to draft nothing (k = 0 is not no speculation)",
    )
    natural_output_tokens: float | None = Field(
        default=None,
        ge=1,
        description="mean output length (geometric) of a request that may end by itself; null: every request runs to max_tokens",
    )
    prefix_cache: bool = Field(
        default=False,
        description="whether blocks of prompts that begin alike are computed once (unless --no-enable-prefix-caching); false: prompts "
        "share nothing",
    )
    refuses: tuple[str, ...] = Field(
        default=(),
        description="fields of requests that this version refuses with HTTP 400, such as min_tokens",
    )
    near_ties: _Share = Field(
        default=0.0,
        description="share of tokens whose second choice is as good: among other requests rounding may turn them round",
    )
    time_scale: float = Field(
        default=1.0, gt=0, description="multiplies every duration of this document, start-up included"
    )
    sources: dict[str, str] = Field(default={}, description="where a number comes from, by its dotted path")

    def method(self, name: str, drafter: str | None = None) -> Method:
        """The costs of a method; the drafter's own entry goes before the entry of its method.

        Raises:
            InputError: neither is in the document.
        """
        for key in (f"{name}:{drafter}", name):
            if key in self.methods:
                return self.methods[key]
        known = ", ".join(sorted(self.methods)) or "none"
        raise InputError("engine costs", f"no entry for method {name}", f"one of: {known}")

    def kv_pool_tokens(self, gpu_memory_utilization: float, method: Method | None) -> int:
        """Tokens of context that fit at once; zero or less means that the engine cannot start."""
        free_gib = self.memory.device_gib * gpu_memory_utilization - self.memory.resident_gib
        share = 1.0 - (method.kv_pool_share if method else 0.0)
        return int(free_gib * share * 2**30 / self.memory.kv_bytes_per_token)


class CostDocument(_Strict):
    """Several engines in one file: one cluster, several node classes."""

    gpus: dict[str, EngineCosts] = Field(
        min_length=1,
        description="engine per GPU product (the node label nvidia.com/gpu.product, or a part of it)",
    )

    @model_validator(mode="after")
    def _names_are_told_apart(self) -> CostDocument:
        folded = [name.casefold() for name in self.gpus]
        if len(set(folded)) != len(folded):
            raise ValueError("two GPU names differ in case only")
        return self

    def for_gpu(self, gpu: str, where: str) -> EngineCosts:
        """The engine of a GPU product: its own entry, else the only entry whose name is part of it or contains it.

        Raises:
            InputError: no entry or more than one fits.
        """
        if gpu in self.gpus:
            return self.gpus[gpu]
        asked = gpu.casefold()
        fitting = [n for n in self.gpus if n.casefold() in asked or asked in n.casefold()]
        if len(fitting) != 1:
            problem = f"{len(fitting) or 'no'} entries fit GPU {gpu!r}"
            raise InputError(where, problem, f"one of: {', '.join(sorted(self.gpus))}")
        return self.gpus[fitting[0]]


def default_document() -> CostDocument:
    """The shipped defaults."""
    text = resources.files("breakeven_sim.engine").joinpath("default_costs.json").read_text(encoding="utf-8")
    return CostDocument.model_validate_json(text)


def parse_costs(text: str, gpu: str, where: str) -> EngineCosts:
    """Read a document of either shape.

    Args:
        text: JSON.
        gpu: which engine is meant if the document holds several.
        where: what an error message calls the document.

    Raises:
        InputError: not JSON, a field missing, unknown or out of range (the first one is named), or no such GPU.
    """
    loaded = json_value(text, where, "an engine-costs document")
    if not isinstance(loaded, dict):
        raise InputError(where, kind_of(loaded), "an engine-costs object")
    try:
        if "gpus" in loaded:
            return CostDocument.model_validate(loaded).for_gpu(gpu, where)
        return EngineCosts.model_validate(loaded)
    except ValidationError as refused:
        raise wrong_field(refused, where, "docs/engine-costs.md lists") from None


def load_costs(
    given: str | None = None, environment: Mapping[str, str] | None = None, option: str = "--sim-costs"
) -> EngineCosts:
    """Choose the engine: the argument, else BREAKEVEN_SIM_COSTS, else the defaults; for BREAKEVEN_SIM_GPU.

    Args:
        given: a path or inline JSON.
        environment: where the two variables are read; the process's own by default.
        option: what an error message calls `given`.

    Raises:
        InputError: the document cannot be read or used; one line says where and why.
    """
    variables = os.environ if environment is None else environment
    gpu = variables.get(GPU_VARIABLE) or DEFAULT_GPU
    value, where = given, option
    if not value:
        value, where = variables.get(COSTS_VARIABLE), COSTS_VARIABLE
    if not value:
        return default_document().for_gpu(gpu, GPU_VARIABLE)
    if value.lstrip().startswith("{"):
        return parse_costs(value, gpu, where)
    text = file_text(Path(value), "an engine-costs document, or inline JSON", f"{where} {value}")
    return parse_costs(text, gpu, value)


def json_schema() -> dict[str, Any]:
    """JSON schema of both shapes of the document, which editors and validators can use."""
    engine = EngineCosts.model_json_schema(ref_template="#/$defs/{model}")
    several = CostDocument.model_json_schema(ref_template="#/$defs/{model}")
    definitions = {**engine.pop("$defs", {}), **several.pop("$defs", {})}
    definitions["EngineCosts"] = engine
    definitions["CostDocument"] = several
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Breakeven engine costs",
        "anyOf": [{"$ref": "#/$defs/CostDocument"}, {"$ref": "#/$defs/EngineCosts"}],
        "$defs": definitions,
    }
