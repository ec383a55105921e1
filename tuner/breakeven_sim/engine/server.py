"""The simulated vLLM as a process: start-up, serving, and stopping the way vLLM does.

Stopping (tried with vLLM 0.32): without `--shutdown-timeout` the engine dies at once, new connections are refused,
and the server waits for its open connections, whose requests are never answered. With it, requests in flight
complete, new ones get HTTP 500 while `/health` still answers 200, and the process exits with the last one.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import signal
import socket
import sys
import time
from typing import Any

from aiohttp import web

from breakeven.errors import BreakevenError, InputError
from breakeven.serving.vllm_versions import SCHEDULE_KEY
from breakeven_sim.engine.configuration import DraftLengths, EngineConfig, engine_config
from breakeven_sim.engine.core import Engine
from breakeven_sim.engine.costs import DefaultLimits, EngineCosts, load_costs
from breakeven_sim.engine.drafting import TextSource
from breakeven_sim.engine.exposition import CacheInfo, EngineMetrics
from breakeven_sim.engine.language import Language
from breakeven_sim.engine.prefix_cache import PrefixCache
from breakeven_sim.engine.realtime import PacedEngine
from breakeven_sim.engine.serve_arguments import VERSION, ServeArguments
from breakeven_sim.engine.speculative_config import SpeculativeConfig, speculation
from breakeven_sim.engine.vllm_api import AnswerSource, NamedModel, VllmApi

_log = logging.getLogger("breakeven.engine_sim")
_GRACE_S = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class ServerSetup:
    """Everything decided before the first byte is served."""

    arguments: ServeArguments
    costs: EngineCosts
    speculation: SpeculativeConfig | None
    config: EngineConfig
    max_model_len: int
    startup_s: float


def prepare(arguments: ServeArguments) -> ServerSetup:
    """Settle costs, speculation and sizes.

    Raises:
        InputError: costs or a speculative configuration that cannot be used.
        BreakevenError: an engine that vLLM would not start: no memory for the KV pool, or too little for one request.
    """
    costs = load_costs(arguments.sim_costs)
    spec = speculation(arguments.speculative_config)
    if spec is not None and _data_parallel(arguments):
        spec = dataclasses.replace(spec, drafts=dataclasses.replace(spec.drafts, tiers=()))
    method = costs.method(spec.method, spec.drafter) if spec else None
    limits = DefaultLimits(
        max_num_seqs=arguments.max_num_seqs or costs.limits.max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens or costs.limits.max_num_batched_tokens,
        max_model_len=arguments.max_model_len or costs.limits.max_model_len,
    )
    pool = _kv_pool_tokens(arguments, costs, spec)
    if pool <= 0:
        raise BreakevenError(
            "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."
        )
    if pool < limits.max_model_len:
        raise BreakevenError(
            f"To serve at least one request with the model's max seq len ({limits.max_model_len}), {limits.max_model_len} tokens of KV "
            f"cache are needed, which is larger than the available {pool} tokens. Try increasing "
            "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
        )
    config = engine_config(
        costs,
        spec.method if spec else None,
        dataclasses.replace(spec.drafts, profiled_context=arguments.profiled_context)
        if spec
        else DraftLengths(0),
        drafter=spec.drafter if spec else None,
        kv_pool_tokens=pool,
        limits=limits,
    )
    startup_s = (costs.startup.base_s + (costs.startup.drafter_s if method else 0.0)) * costs.time_scale
    return ServerSetup(arguments, costs, spec, config, limits.max_model_len, startup_s)


def _data_parallel(arguments: ServeArguments) -> bool:
    """Whether several ranks share the requests: they could disagree on a draft length, so vLLM lets them have one."""
    return int(arguments.recorded.get("data_parallel_size") or 1) > 1


def run(launch: ServerSetup) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(levelname)s %(asctime)s %(message)s",
        datefmt="%m-%d %H:%M:%S",
    )
    return asyncio.run(_serve(launch))


def _kv_pool_tokens(arguments: ServeArguments, costs: EngineCosts, spec: SpeculativeConfig | None) -> int:
    if arguments.num_gpu_blocks_override is not None:
        return arguments.num_gpu_blocks_override * arguments.block_size
    method = costs.method(spec.method, spec.drafter) if spec else None
    if arguments.kv_cache_memory_bytes is not None:
        share = 1.0 - (method.kv_pool_share if method else 0.0)
        return int(arguments.kv_cache_memory_bytes * share / costs.memory.kv_bytes_per_token)
    return costs.kv_pool_tokens(arguments.gpu_memory_utilization, method)


async def _serve(launch: ServerSetup) -> int:
    arguments = launch.arguments
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stopping)
    # Bound first, so that a taken port is known before the long start-up; no client can connect before it listens.
    listener = _bind(arguments.host, arguments.port)
    address = listener.getsockname()
    _announce(launch)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stopping.wait(), launch.startup_s)
        listener.close()
        return 0
    engine = Engine(launch.config)
    cache = CacheInfo(
        block_size=arguments.block_size,
        kv_pool_tokens=launch.config.kv_pool_tokens,
        kv_bytes_per_token=launch.costs.memory.kv_bytes_per_token,
        gpu_memory_utilization=arguments.gpu_memory_utilization,
        max_model_len=launch.max_model_len,
        num_gpu_blocks_override=arguments.num_gpu_blocks_override,
    )
    metrics = EngineMetrics(engine, arguments.served_names[0], cache, time.time())
    paced = PacedEngine(engine, metrics.record_step)
    api = _api(launch, paced, metrics)
    runner = web.AppRunner(
        api.application(), access_log=None, handler_cancellation=True, shutdown_timeout=_GRACE_S
    )
    await runner.setup()
    site = web.SockSite(runner, listener, backlog=2048)
    tasks = [asyncio.create_task(paced.run()), asyncio.create_task(_log_stats(paced, metrics))]
    await asyncio.sleep(0)  # the event clock starts before the first request can
    await site.start()
    url = f"http://{address[0]}:{address[1]}"
    _log.info("Started server on %s", url)
    if arguments.as_json:
        sys.stdout.write(json.dumps(_document(launch, url), indent=2) + "\n")
        sys.stdout.flush()
    await stopping.wait()
    await _stop(api, paced, runner, site, arguments.shutdown_timeout_s)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await runner.cleanup()
    return 0


_DROPPING = ("eagle", "eagle3", "mtp")
"""Methods whose drafter's cache depends on the next token, so that the engine computes the last cached block again."""


def _api(launch: ServerSetup, paced: PacedEngine, metrics: EngineMetrics) -> VllmApi:
    spec, seed = launch.speculation, launch.arguments.seed
    texts, broken = None, None
    if spec is not None:
        method = launch.costs.method(spec.method, spec.drafter)
        texts, broken = TextSource(method.text, seed, spec.imposed_survival), method.broken_answers
    api = VllmApi(
        paced,
        metrics,
        NamedModel(
            launch.arguments.served_names, launch.arguments.model, launch.max_model_len, launch.costs.refuses
        ),
        AnswerSource(
            texts,
            launch.costs.natural_output_tokens,
            seed,
            # Engines of different arms turn other near-ties round.
            Language(launch.costs.near_ties, broken, seed + launch.config.drafts.longest),
        ),
        launch.arguments.api_keys,
    )
    api.prefixes = _prefixes(launch)
    return api


def _prefixes(launch: ServerSetup) -> PrefixCache | None:
    """The prefix cache; None if the engine has none."""
    if not launch.costs.prefix_cache or launch.arguments.recorded.get("enable_prefix_caching") is False:
        return None
    spec, size = launch.speculation, launch.arguments.block_size
    drops = (
        spec is not None
        and spec.method in _DROPPING
        and spec.given.get("disable_eagle_block_drop") is not True
    )
    return PrefixCache(launch.config.kv_pool_tokens // size, size, drops_last=drops)


def _on_signal(stopping: asyncio.Event) -> None:
    if stopping.is_set():
        # A second signal ends the server although connections still wait.
        os._exit(1)
    stopping.set()


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as problem:
        listener.close()
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise InputError(f"--host {host} --port {port}", str(reason), "an address that is free") from None
    return listener


async def _stop(
    api: VllmApi, paced: PacedEngine, runner: web.AppRunner, site: web.BaseSite, timeout_s: float
) -> None:
    """Stop as vLLM does; see the module's docstring."""
    if timeout_s <= 0:
        _log.info("Shutting down at once: %d requests in flight will not be answered", paced.in_flight)
        paced.kill()
        await site.stop()
        api.hang_up(runner.server.connections if runner.server else ())
        await api.quiet.wait()
        return
    _log.info("Draining %d requests, at most %g s", paced.in_flight, timeout_s)
    api.draining = True
    try:
        await asyncio.wait_for(api.quiet.wait(), timeout_s)
    except TimeoutError:
        _log.warning("Drain timed out: %d requests cut off", paced.in_flight)
        paced.kill()
    await site.stop()


def _announce(launch: ServerSetup) -> None:
    arguments, config = launch.arguments, launch.config
    _log.info(
        "Simulated vLLM %s, model %s, %s", VERSION, arguments.model, launch.costs.description or "given costs"
    )
    if launch.speculation is not None:
        _log.info("Speculation: %s", dict(launch.speculation.given))
        if SCHEDULE_KEY in launch.speculation.given and _data_parallel(arguments):
            _log.warning(
                "%s is not supported with data parallelism: drafting num_speculative_tokens", SCHEDULE_KEY
            )
    else:
        _log.info("Speculation: none")
    _log.info(
        "KV pool %d tokens, max_num_seqs %d, max_num_batched_tokens %d, max_model_len %d",
        config.kv_pool_tokens,
        config.max_num_seqs,
        config.max_num_batched_tokens,
        launch.max_model_len,
    )
    if arguments.recorded:
        _log.info("Recorded, without effect here: %s", dict(arguments.recorded))
    _log.info("Ready in %.1f s", launch.startup_s)


def _document(launch: ServerSetup, url: str) -> dict[str, Any]:
    """A description of the running server that the program which started it can read."""
    return {
        "url": url,
        "version": VERSION,
        "model": launch.arguments.model,
        "served_model_names": list(launch.arguments.served_names),
        "speculative_config": None if launch.speculation is None else dict(launch.speculation.given),
        "kv_pool_tokens": launch.config.kv_pool_tokens,
        "max_num_seqs": launch.config.max_num_seqs,
        "max_num_batched_tokens": launch.config.max_num_batched_tokens,
        "max_model_len": launch.max_model_len,
        "startup_s": launch.startup_s,
    }


async def _log_stats(paced: PacedEngine, metrics: EngineMetrics) -> None:
    """VLLM's periodic line, and how far real time lags behind the event clock."""
    interval_s = float(os.environ.get("VLLM_LOG_STATS_INTERVAL", "10"))
    names = (
        "prompt_tokens",
        "generation_tokens",
        "spec_decode_num_drafts",
        "spec_decode_num_accepted_tokens",
    )
    before = [metrics.total(name) for name in names]
    while True:
        await asyncio.sleep(interval_s)
        now = [metrics.total(name) for name in names]
        prompts, tokens, drafts, accepted = (b - a for a, b in zip(before, now, strict=True))
        before = now
        if not tokens:
            continue
        engine, clock = paced.engine, paced.clock()
        _log.info(
            "Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f tokens/s, Running: %d reqs, "
            "Waiting: %d reqs, GPU KV cache usage: %.1f%%, event clock lag: %.1f ms (mean %.1f, max %.1f)",
            prompts / interval_s,
            tokens / interval_s,
            engine.running,
            engine.waiting,
            engine.kv_usage * 100,
            clock.lag_s * 1e3,
            clock.mean_lag_s * 1e3,
            clock.max_lag_s * 1e3,
        )
        if drafts:
            _log.info("SpecDecoding metrics: Mean acceptance length: %.2f", 1 + accepted / drafts)
