"""Verdict of vLLM itself on an engine's command line, without a GPU: `vllm_judge.py` is run by a Python that has vLLM.

vLLM is heavy, prints, and may end its process. It is asked in a child process with a deadline, and the network is out of reach there.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from breakeven.errors import BreakevenError, InputError
from breakeven.serving import vllm_judge
from breakeven.serving.command_line import after_program
from breakeven.serving.engine_start import EngineStart, environment_of
from breakeven.serving.engine_warnings import is_preset
from breakeven.serving.opt_in import ANNOTATION, VARIABLE
from breakeven.serving.template import PodTemplate
from breakeven.serving.vllm_versions import VllmVersion, version_of

# Importing vLLM took 12 s on two idle cores, and a minute on busy ones; a model's class is inspected for as long again.
IMPORT_S, EACH_S = 300.0, 60.0
"""The deadline of a process, and what each question adds."""
# A Pod that names no GPUs (a DRA claim, a chart's values) is judged as if it had the GPUs of one server.
_SERVER_GPUS = 8
_OTHER_GPUS = re.compile(r"rocm|tpu|xpu|gaudi|hpu|neuron|ascend", re.IGNORECASE)
# Folders and files of the container, which are not here.
_NOT_HANDED_ON = re.compile(r"VLLM_(CACHE_ROOT|CONFIG_ROOT|LOGGING_\w+|TARGET_DEVICE)")


@dataclass(frozen=True, slots=True)
class EngineVerdict:
    """vLLM's answer about one engine.

    Attributes:
        outcome: accepted, refused, or unjudged.
        sentence: vLLM's own words if it refuses, or why nothing was judged.
        vllm: the version that judged.
        judged_as: the device that the engine was judged for.
        unjudged: parts that vLLM could not judge here, each with the reason.
        resolved: settings that the words come to, by vLLM's names.
    """

    outcome: str
    sentence: str = ""
    vllm: str = ""
    judged_as: str = ""
    unjudged: tuple[str, ...] = ()
    resolved: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AskedEngine:
    """The question to vLLM about one engine: the program (`serve`, or `api_server` for the module), its words and variables.

    Without GPUs the engine is for CPU. `unjudged` holds parts that are left out of the question, each with the reason.
    """

    program: str
    words: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    gpus: int
    unjudged: tuple[str, ...]


def question_of(
    template: PodTemplate, container: Mapping[str, Any], start: EngineStart
) -> AskedEngine | EngineVerdict:
    """The question about a container, or why none can be asked."""
    following = after_program(start.words)
    before = start.words[: len(start.words) - len(following)]
    if not start.words or start.unseen:
        why = start.problems[0] if start.problems else f"{start.unseen} is not seen here"
        return EngineVerdict("unjudged", f"its command line is not known: {why}")
    arm = str(template.annotations.get(ANNOTATION) or "")
    words = [word.replace(f"$({VARIABLE})", arm) for word in following]
    if is_preset(template, container):
        # It says its model elsewhere.
        words.insert(0, "the-presets-model")
    left_out = []
    if "--config" in words:
        at = words.index("--config")
        left_out.append(f"the file {' '.join(words[at + 1 : at + 2])} of --config (it is not here)")
        del words[at : at + 2]
    image = str(container.get("image", ""))
    if (other := _OTHER_GPUS.search(image)) is not None:
        left_out.append(f"what {other[0]} does otherwise (judged as on an NVIDIA GPU)")
    environment = tuple(
        (name, value)
        for name, value in sorted({**environment_of(container), **start.exports}.items())
        if re.fullmatch(r"VLLM_\w+", name, re.ASCII)
        and value is not None
        and not _NOT_HANDED_ON.fullmatch(name)
        if value.isprintable()
    )
    gpus = 0 if "cpu" in image.lower() else _gpus(container)
    program = "api_server" if "-m" in before else "serve"
    return AskedEngine(program, tuple(words), environment, gpus, tuple(left_out))


def _gpus(container: Mapping[str, Any]) -> int:
    resources = container.get("resources")
    limits = resources.get("limits") if isinstance(resources, Mapping) else None
    said = str(limits.get("nvidia.com/gpu", "")) if isinstance(limits, Mapping) else ""
    return int(said) if re.fullmatch(r"[1-9]\d{0,3}", said) else _SERVER_GPUS


def verdicts(
    questions: Sequence[AskedEngine], python: str, configs: Path | None
) -> dict[AskedEngine, EngineVerdict]:
    """Ask vLLM each question; those with the same environment in one process.

    `configs` holds the target's config.json, or folders of the models' names that hold one.

    Raises:
        BreakevenError: that Python cannot be run, or has no vLLM; the folder is none.
    """
    program = shutil.which(python)
    if program is None:
        raise InputError("--engine", python, "a Python that has vLLM")
    if configs is not None and not configs.is_dir():
        raise InputError("--model-config", f"{configs} is no folder", "a folder with a model's config.json")
    found: dict[AskedEngine, EngineVerdict] = {}
    groups = dict.fromkeys((one.environment, one.gpus) for one in questions)
    for environment, gpus in groups:
        asked = list(
            dict.fromkeys(one for one in questions if (one.environment, one.gpus) == (environment, gpus))
        )
        document = {
            "gpus": gpus,
            "configs": str(configs.resolve()) if configs is not None else "",
            "questions": [{"program": one.program, "words": one.words} for one in asked],
        }
        answers = _answers(program, document, dict(environment))
        found |= {one: _verdict(one, answer) for one, answer in zip(asked, answers, strict=True)}
    return found


def _answers(
    python: str, document: Mapping[str, Any], environment: Mapping[str, str]
) -> Iterator[Mapping[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="breakeven-engine-") as name:
        # The judge's folder is the first place where its Python looks for modules: it holds nothing else.
        judge, answers, work = (Path(name, part) for part in ("judge", "answers", "work"))
        for folder in (judge, answers, work):
            folder.mkdir()
        script = shutil.copy(str(vllm_judge.__file__), judge)
        own = {key: value for key, value in os.environ.items() if not key.startswith(("VLLM_", "PYTHON"))}
        own |= {**environment, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        own |= {"VLLM_CACHE_ROOT": f"{name}/cache", "VLLM_CONFIG_ROOT": f"{name}/settings"}
        limit_s = IMPORT_S + EACH_S * len(document["questions"])
        ending = _run([python, str(script), str(answers)], json.dumps(document), own, work, limit_s)
        for number in range(len(document["questions"])):
            try:
                answer = json.loads((answers / f"{number}.json").read_text(encoding="utf-8"))
            except (OSError, ValueError):
                answer = {"outcome": "unjudged", "sentence": ending}
            yield answer


def _run(
    command: Sequence[str], text: str, environment: Mapping[str, str], folder: Path, limit_s: float
) -> str:
    """Run the judge to its end; how it ended, as the reason for an answer that is missing."""
    log = folder.parent / "log"
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env=dict(environment), cwd=folder, stdin=subprocess.PIPE, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
    except OSError as error:
        raise InputError("--engine", f"{command[0]}: {error.strerror}", "a Python that has vLLM") from error
    try:
        process.communicate(text.encode(), timeout=limit_s)
    except subprocess.TimeoutExpired:
        return f"vLLM did not answer within {limit_s:g} s"
    finally:
        # Also what vLLM itself has started.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    if process.returncode == vllm_judge.NO_VLLM:
        raise BreakevenError(
            f"{command[0]} has no vLLM; pip install 'breakeven[vllm]', or name a Python that has it: --engine PYTHON"
        )
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["without a word"]
    return f"vLLM's process ended ({said[-1].strip()[:200]})"


def _verdict(question: AskedEngine, answer: Mapping[str, Any]) -> EngineVerdict:
    outcome, sentence = str(answer["outcome"]), str(answer["sentence"])
    unjudged = [*question.unjudged, *answer.get("unjudged", ())]
    if outcome == "refused" and "$(" in sentence:
        # The value stands elsewhere in the cluster, and Kubernetes puts it in.
        outcome, sentence = "unjudged", f"the value of a variable is not in the file ({sentence})"
    return EngineVerdict(
        outcome,
        sentence,
        str(answer.get("vllm", "")),
        vllm_judge.GPU if question.gpus else "CPU",
        tuple(unjudged),
        answer.get("resolved", {}),
    )


def verdict_line(verdict: EngineVerdict, image: str) -> str:
    """A verdict as people read it, with a word if the image's tag names another version."""
    said, version = version_of(image), verdict.vllm
    other = said is not None and version and VllmVersion.of(version) != said
    by = f"vLLM {version}" + (f" (the image's tag says {said})" if other else "")
    left = f"; not judged: {'; '.join(verdict.unjudged)}" if verdict.unjudged else ""
    if verdict.outcome == "unjudged":
        return f"not judged: {verdict.sentence}{left}"
    if verdict.outcome == "refused":
        return f"refused by {by}: {verdict.sentence}"
    words = {True: "on", False: "off"}
    facts = ", ".join(
        f"{name} {words[value] if isinstance(value, bool) else value}"
        for name, value in verdict.resolved.items()
    )
    part = " in part" if left else ""
    return f"accepted{part} by {by} as on {verdict.judged_as}{f': {facts}' if facts else ''}{left}"
