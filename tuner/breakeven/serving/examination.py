"""The examination of a pod template's engine: opt-in, draining, what keeps the operator from being of use, and vLLM's own verdict.

vLLM judges a command line without a GPU: `vllm_judge.py` is run by a Python that has it. vLLM is heavy, prints, and may end its
process. It is asked in a child process with a deadline, and the network is out of reach there.
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
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

from breakeven.errors import BreakevenError, InputError
from breakeven.methods import PROFILED_CONTEXT
from breakeven.serving import vllm_judge
from breakeven.serving.command_line import (
    after_program,
    configuration,
    cut,
    flag_number,
    flags,
    mounted_files,
    speculation,
)
from breakeven.serving.engine_start import (
    EngineStart,
    engine_start,
    environment_of,
    preset_start,
    says_vllm,
    serves_nobody,
)
from breakeven.serving.findings import said
from breakeven.serving.opt_in import ANNOTATION, VARIABLE, OptIn, opt_in_of, preset_opt_in
from breakeven.serving.pod_templates import (
    PATCH,
    PRESET_CONTAINER,
    PRESET_KIND,
    TEMPLATE,
    Neighbours,
    PassedOver,
    PodTemplate,
    is_helm_template,
)
from breakeven.serving.rolling import (
    ROLLED,
    WITHOUT_SURGE,
    Drain,
    drain,
    mounted_claims,
    rolled_kinds,
    unshareable,
)
from breakeven.serving.vllm_versions import (
    SHUTDOWN_TIMEOUT,
    VllmVersion,
    hindrances,
    known,
    profiled_context,
    refused_note,
    schedule_doubts,
    unknown_context,
    unknown_words,
    version_of,
)

_DEFAULT_PORT = 8000
_PARTS = ("command", "args")


def is_preset(template: PodTemplate, container: Mapping[str, Any]) -> bool:
    """Whether KServe's preset makes the container's command."""
    own = container.get("command") or container.get("args")
    return template.kind == PRESET_KIND and container.get("name") == PRESET_CONTAINER and not own


def _warnings(template: PodTemplate, container: Mapping[str, Any], start: EngineStart) -> Iterator[str]:
    """Whole sentences about what fights with the operator, or leaves it without use."""
    image, named = str(container.get("image", "")), f"containers[{container.get('name')}]"
    version, path = version_of(image), template.annotations_path
    if ANNOTATION in template.annotations:
        yield said("annotated", path=path, annotation=ANNOTATION)
    yield from (f"{named}: {problem}" for problem in (*start.problems, start.undrained) if problem)
    running, annotated = speculation(start.words), _annotated(template)
    if running.problem is not None and start.literal:
        yield f"{named}: vLLM refuses to start: {running.problem}"
    for config in (running.config, annotated):
        if config is not None:
            yield from schedule_doubts(config, start.words, image)
    config = annotated or running.config
    for line in (*hindrances(start.words, config, version), *unknown_words(start.words, config, version)):
        yield f"{named} has {line}"
    if config and config.get("rejection_sample_method") == "synthetic" and "cpu" in image.lower():
        yield f"{named} has rejection_sample_method synthetic: vLLM on CPU fails with it; leave it out"
    yield from _written(template, container, start, named)
    if not image and not is_preset(template, container) and template.kind in ROLLED:
        yield f"{template.title}: no image: {PATCH}, because the rest of it is not seen here"
    rolled = ROLLED.get(template.kind)
    if rolled is not None and (held := rolled.held(template.rolling)) is not None:
        yield f"{template.title} {held}"
    if not template.managed:
        place = path or "no place that reaches its pods"
        yield said("not rolled", title=template.title, kinds=rolled_kinds("and", "s"), place=place)


def _written(
    template: PodTemplate, container: Mapping[str, Any], start: EngineStart, named: str
) -> Iterator[str]:
    """What vLLM, or a Prometheus, does not take as it is written."""
    items = [(f"{named}.{part}", str(item)) for part in _PARTS for item in container.get(part) or []]
    yield from (
        said("ignored file", part=part, item=one) for part, one in items if one.startswith("--config=")
    )
    if not start.through_shell and not start.unseen:
        for part, item in items:
            flag, *values = item.split(maxsplit=1) or [""]
            if values and flag in flags():
                yield said("flag with a space", part=part, flag=flag)
    if str(template.annotations.get("prometheus.io/scrape", "")).lower() == "false":
        yield said("not scraped", path=template.annotations_path)
    given, port = (
        template.annotations.get("prometheus.io/port"),
        flag_number(start.words, "--port") or _DEFAULT_PORT,
    )
    if given is not None and str(given) != str(port) and not start.through_shell:
        yield said("scraped elsewhere", path=template.annotations_path, given=given, port=port)


def _annotated(template: PodTemplate) -> Mapping[str, Any] | None:
    """The arm that the template's annotation chooses; None if it chooses none, or cannot be read."""
    try:
        return configuration(str(template.annotations.get(ANNOTATION) or ""))
    except InputError:
        return None


@dataclass(frozen=True, slots=True)
class Examination:
    """The findings about one engine.

    Warnings are sentences: what fights with the operator or leaves it without use. Notes are to be read before the opt-in, whatever the
    manifest says.
    """

    template: PodTemplate
    container: str
    engine: Mapping[str, Any]
    start: EngineStart
    opt_in: OptIn
    drain: Drain
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is missing."""
        return self.opt_in.ok and self.drain.ok and not self.warnings


def examinations(
    template: PodTemplate, container_name: str | None, beside: Neighbours
) -> Iterator[Examination | PassedOver]:
    """Each engine of a pod template, or why it has none; without a name, of the containers that say that they run vLLM.

    Raises:
        InputError: its strategy has an invalid number of pods.
    """
    texts = (str(one.get(key, "")) for one in template.containers for key in ("name", "image"))
    words = (str(item) for one in template.containers for part in _PARTS for item in one.get(part) or [])
    if any(is_helm_template(text, template.kind) for text in (*texts, *words)):
        yield PassedOver(template.title, TEMPLATE)
        return
    engines = [
        container
        for container in template.containers
        if (
            says_vllm(container) or is_preset(template, container)
            if container_name is None
            else container.get("name") == container_name
        )
    ]
    for container in engines:
        yield _examine(template, container, beside, alone=len(engines) == 1)
    if not engines:
        yield PassedOver(template.title, _no_engine(template, container_name))


def _no_engine(template: PodTemplate, container_name: str | None) -> str:
    names = [str(container.get("name", "?")) for container in template.containers]
    if container_name is not None:
        return f"has no container {container_name} ({', '.join(names[:8])})"
    if not any(container.get("image") for container in template.containers):
        return f"no image: {PATCH}"
    for one in template.containers:
        if (how := serves_nobody(one)) is not None:
            return f"container {one.get('name', '?')} {how}"
    if len(names) == 1:
        return f"does not look like vLLM; --container {names[0]} if it does"
    return f"does not look like vLLM; --container NAME if one of {', '.join(names[:8])} does"


def _examine(
    template: PodTemplate, container: Mapping[str, Any], beside: Neighbours, *, alone: bool
) -> Examination:
    files = mounted_files(template.pod_spec, container, beside.config_maps)
    places = template.places_of(container)
    if is_preset(template, container):
        start, chosen = preset_start(container), preset_opt_in(container, places)
        stopping = replace(drain(template.pod_spec, container, start.words), problems=())
    else:
        start = engine_start(container, files)
        chosen = opt_in_of(container, start, places, files)
        stopping = drain(template.pod_spec, container, start.words)
    waited_for, unknown = _volumes(template, beside.claims)
    return Examination(
        template,
        str(container.get("name", "")),
        container,
        start,
        chosen,
        stopping,
        (*_warnings(template, container, start), *waited_for),
        (*_notes(template, container, start, stopping, alone=alone), *unknown),
    )


def _notes(
    template: PodTemplate, container: Mapping[str, Any], start: EngineStart, stopping: Drain, *, alone: bool
) -> Iterator[str]:
    version, newest = version_of(str(container.get("image", ""))), known().newest
    yield refused_note(version)
    if template.remark:
        yield template.remark
    if is_preset(template, container):
        yield said("preset")
    if version is None:
        yield said("unknown version", oldest=SHUTDOWN_TIMEOUT, newest=newest)
    elif version > newest:
        yield f"vLLM {version} is newer than {newest}, the newest that was read for what is said here"
    yield from _notes_of_container(template, container, start, alone=alone)
    spec = template.rolling
    claims = (spec.get("leaderWorkerTemplate") or spec).get("volumeClaimTemplates") or []
    # A calibration's pod cannot share these with the pods that it is a copy of.
    if names := ", ".join(str((claim.get("metadata") or {}).get("name", "?")) for claim in claims[:8]):
        yield said("copied volumes", names=names)
    if stopping.pre_stop_s is None:
        yield said("unknown hook", grace_s=stopping.grace_s, timeout_s=stopping.shutdown_timeout_s)
    config = _annotated(template) or speculation(start.words).config
    if (context := unknown_context(start.words, config)) is not None:
        yield context
    profiled = profiled_context(config, environment_of(container))
    if profiled and PROFILED_CONTEXT not in environment_of(container):
        yield said("profiled context", profiled=profiled, variable=PROFILED_CONTEXT)


def _notes_of_container(
    template: PodTemplate, container: Mapping[str, Any], start: EngineStart, *, alone: bool
) -> Iterator[str]:
    annotated = any(str(key).startswith("prometheus.io/") for key in template.annotations)
    ports = container.get("ports")
    named = isinstance(ports, list) and any(isinstance(port, Mapping) and port.get("name") for port in ports)
    if not annotated and not named:
        yield said("no port")
    given = {flag.name for flag in cut(start.words)}
    if "--enable-lora" in given:
        yield said("adapters")
    if start.unseen:
        yield said("unseen script", file=start.unseen)
    if "--config" in given:
        yield "--config: what that file says is not seen here; flags beside it win"
    if not alone:
        yield "more than one container runs vLLM: the operator manages the one that targetRef.containerName names"


def _volumes(
    template: PodTemplate, claims: Sequence[Mapping[str, Any]]
) -> tuple[Sequence[str], Sequence[str]]:
    """The claims that a pod which a roll adds would wait for in vain; where they are not known, the claims to look at."""
    spec, pod_spec = template.rolling, template.pod_spec
    if not template.managed or template.kind not in ROLLED:
        return (), ()
    kind = ROLLED[template.kind]
    place = ".".join(("spec", *kind.rolls_at))
    try:
        desired = int(spec.get("replicas", 1))
    except (ValueError, OverflowError):
        where = f"{template.where}: spec.replicas"
        raise InputError(where, str(spec["replicas"]), "a number of pods") from None
    try:
        surge = kind.strategy(spec, desired).max_surge
    except (ValueError, OverflowError):
        found = str(reduce(lambda part, name: part[name], kind.rolls_at, spec))
        raise InputError(f"{template.where}: {place}", found, "numbers of pods or percentages") from None
    if surge == 0:
        return (), ()
    own = template.namespace or "default"
    known_claims = [claim for claim in claims if claim["metadata"].get("namespace", own) == own]
    alone = unshareable(pod_spec, known_claims)
    unknown = sorted(mounted_claims(pod_spec) - {claim["metadata"]["name"] for claim in known_claims})
    lines = f"{WITHOUT_SURGE} under {place}" if kind.rolls_at else ""
    pods, way_out = f"{surge} pod{'s' if surge > 1 else ''}", f"; or write {lines}" if lines else ""
    here = f", or {lines} here" if lines else ""
    return (
        [f"a roll adds {pods}: {alone}{way_out}"] if alone else [],
        [said("unknown claim", claim=claim, here=here) for claim in unknown],
    )


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
    number = str(limits.get("nvidia.com/gpu", "")) if isinstance(limits, Mapping) else ""
    return int(number) if re.fullmatch(r"[1-9]\d{0,3}", number) else _SERVER_GPUS


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
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["without a word"]
    return f"vLLM's process ended ({lines[-1].strip()[:200]})"


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
    tagged, version = version_of(image), verdict.vllm
    other = tagged is not None and version and VllmVersion.of(version) != tagged
    by = f"vLLM {version}" + (f" (the image's tag says {tagged})" if other else "")
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
