"""The simulated vLLM in the test's own event loop, because virtual time makes its figures exact."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from aiohttp import web

from breakeven_sim.engine.configuration import DraftLengths, engine_config
from breakeven_sim.engine.core import Engine
from breakeven_sim.engine.costs import parse_costs
from breakeven_sim.engine.drafting import TextSource
from breakeven_sim.engine.exposition import CacheInfo, EngineMetrics
from breakeven_sim.engine.language import Language
from breakeven_sim.engine.prefix_cache import PrefixCache
from breakeven_sim.engine.realtime import PacedEngine
from breakeven_sim.engine.speculative_config import speculation
from breakeven_sim.engine.vllm_api import AnswerSource, NamedModel, VllmApi

_POOL_TOKENS, _BLOCK = 10**6, 16
_MODEL, _MAX_MODEL_LEN = "tiny", 4096


@contextlib.asynccontextmanager
async def simulated(
    document: Mapping[str, Any],
    speculative_config: Mapping[str, Any] | None = None,
    model: str = _MODEL,
    seed: int = 0,
) -> AsyncIterator[str]:
    """Serve it, with room for every request; yields its URL.

    Args:
        document: the engine's costs.
        speculative_config: as vLLM's flag takes it.
        model: the name it is served under.
        seed: of the texts that drafts meet, and of the near-ties that are turned round.
    """
    costs = parse_costs(json.dumps(document), "", "costs")
    spec = speculation(speculative_config)
    config = engine_config(
        costs,
        spec.method if spec else None,
        spec.drafts if spec else DraftLengths(0),
        kv_pool_tokens=_POOL_TOKENS,
    )
    engine = Engine(config)
    metrics = EngineMetrics(
        engine, model, CacheInfo(_BLOCK, _POOL_TOKENS, 1.0, 0.9, _MAX_MODEL_LEN, None), 0.0
    )
    paced = PacedEngine(engine, metrics.record_step)
    texts = TextSource(costs.method(spec.method).text, seed) if spec else None
    broken = costs.method(spec.method).broken_answers if spec else None
    language = Language(costs.near_ties, broken, (spec.drafts.longest if spec else 0) + seed)
    api = VllmApi(
        paced,
        metrics,
        NamedModel((model,), model, _MAX_MODEL_LEN, costs.refuses),
        AnswerSource(texts, language=language),
    )
    api.prefixes = PrefixCache(_POOL_TOKENS // _BLOCK, _BLOCK) if costs.prefix_cache else None
    runner = web.AppRunner(
        api.application(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    steps = asyncio.create_task(paced.run())
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
        steps.cancel()
        await asyncio.wait([steps])
