"""The examination of a pod template's engine: opt-in, draining, and what keeps the operator from being of use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from breakeven.errors import InputError
from breakeven.serving import refused_requests
from breakeven.serving.command_line import cut
from breakeven.serving.config_file import mounted_files
from breakeven.serving.drain import Drain, drain
from breakeven.serving.engine_start import EngineStart, engine_start, preset_start, says_vllm, serves_nobody
from breakeven.serving.engine_warnings import configured, engine_warnings, is_preset
from breakeven.serving.hindrances import unknown_context
from breakeven.serving.opt_in import OptIn, preset_opt_in
from breakeven.serving.pod_templates import PATCH, TEMPLATE, Neighbours, is_helm_template
from breakeven.serving.rolling import ROLLED, WITHOUT_SURGE, mounted_claims, unshareable
from breakeven.serving.script_opt_in import opt_in_of
from breakeven.serving.template import PassedOver, PodTemplate
from breakeven.serving.vllm_versions import SHUTDOWN_TIMEOUT, known, version_of


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
    if any(
        is_helm_template(text, template.kind)
        for container in template.containers
        for text in _texts(container)
    ):
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


def _texts(container: Mapping[str, Any]) -> Iterator[str]:
    yield from (str(container.get(key, "")) for key in ("name", "image"))
    for key in ("command", "args"):
        yield from (str(item) for item in container.get(key) or [])


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
    waited_for, unknown = volume_warnings(template, beside.claims)
    return Examination(
        template,
        str(container.get("name", "")),
        container,
        start,
        chosen,
        stopping,
        (*engine_warnings(template, container, start), *waited_for),
        (
            refused_requests.note(version_of(str(container.get("image", "")))),
            *_notes(template, container, start, alone=alone),
            *_copied(template),
            *_unknown_lengths(stopping, start, configured(template, start)),
            *unknown,
        ),
    )


def _unknown_lengths(stopping: Drain, start: EngineStart, config: Mapping[str, Any] | None) -> Iterator[str]:
    if stopping.pre_stop_s is None:
        yield (
            "the file does not show how long the preStop hook takes: a pod is killed "
            f"{stopping.grace_s:g} s (terminationGracePeriodSeconds) after the hook begins, so that must be longer than the hook "
            f"and --shutdown-timeout ({stopping.shutdown_timeout_s:g}) together"
        )
    if (context := unknown_context(start.words, config)) is not None:
        yield context


def _copied(template: PodTemplate) -> Iterator[str]:
    """The volumes that a calibration's pod cannot share with the pods that it is a copy of."""
    spec = template.rolling
    claims = (spec.get("leaderWorkerTemplate") or spec).get("volumeClaimTemplates") or []
    names = ", ".join(str((claim.get("metadata") or {}).get("name", "?")) for claim in claims[:8])
    if names:
        yield (
            f"a calibration's pod gets a new, empty volume in place of the volumeClaimTemplate {names}: its engine loads again "
            "what the pods keep there; a ReadOnlyMany volume for the model saves that"
        )


def _notes(
    template: PodTemplate, container: Mapping[str, Any], start: EngineStart, *, alone: bool
) -> Iterator[str]:
    version, table = version_of(str(container.get("image", ""))), known()
    if template.remark:
        yield template.remark
    if is_preset(template, container):
        yield (
            "KServe's preset starts vLLM and drains it (preStop 15 s, grace 60 s, a --shutdown-timeout within it); requests "
            "that last longer need a template of your own"
        )
    if version is None:
        yield (
            "the image's tag does not say which vLLM it is: what is said here holds for "
            f"{SHUTDOWN_TIMEOUT} to {table.newest}"
        )
    elif version > table.newest:
        yield f"vLLM {version} is newer than {table.newest}, the newest that was read for what is said here"
    annotated = any(str(key).startswith("prometheus.io/") for key in template.annotations)
    ports = container.get("ports")
    named = isinstance(ports, list) and any(isinstance(port, Mapping) and port.get("name") for port in ports)
    if not annotated and not named:
        yield (
            "no annotation prometheus.io/scrape and no named port: a PodMonitor finds its metrics by the name of a port, and "
            "without them the operator decides nothing"
        )
    given = {flag.name for flag in cut(start.words)}
    if "--enable-lora" in given:
        yield (
            "--enable-lora: the drafter knows no adapter, so that fewer of its drafts are accepted for requests with one; "
            "calibrate with the requests that you have"
        )
    if start.unseen:
        yield (
            f"{start.unseen} is not seen here: if it starts vLLM, arguments reach that only if the script ends its command line with "
            '"$@", and SIGTERM only if it begins that line with exec'
        )
    if "--config" in given:
        yield "--config: what that file says is not seen here; flags beside it win"
    if not alone:
        yield (
            "more than one container runs vLLM: the operator manages the one that targetRef.containerName names"
        )


def volume_warnings(
    template: PodTemplate, claims: Sequence[Mapping[str, Any]]
) -> tuple[Sequence[str], Sequence[str]]:
    """The claims that a pod which a roll adds would wait for in vain; where they are not known, the claims to look at."""
    spec, pod_spec = template.rolling, template.pod_spec
    if not template.managed or template.kind not in ROLLED:
        return (), ()
    kind = ROLLED[template.kind]
    try:
        desired = int(spec.get("replicas", 1))
    except (ValueError, OverflowError):
        raise InputError(
            f"{template.where}: spec.replicas", str(spec["replicas"]), "a number of pods"
        ) from None
    place = ".".join(("spec", *kind.rolls_at))
    try:
        surge = kind.strategy(spec, desired).max_surge
    except (ValueError, OverflowError):
        raise InputError(
            f"{template.where}: {place}",
            str(reduce(lambda part, name: part[name], kind.rolls_at, spec)),
            "numbers of pods or percentages",
        ) from None
    if surge == 0:
        return (), ()
    own = template.namespace or "default"
    known_claims = [claim for claim in claims if claim["metadata"].get("namespace", own) == own]
    alone = unshareable(pod_spec, known_claims)
    unknown = sorted(mounted_claims(pod_spec) - {claim["metadata"]["name"] for claim in known_claims})
    pods = f"{surge} pod{'s' if surge > 1 else ''}"
    without_surge = f"{WITHOUT_SURGE} under {place}"
    way_out, here = (
        (f"; or write {without_surge}", f", or {without_surge} here") if kind.rolls_at else ("", "")
    )
    return (
        [f"a roll adds {pods}: {alone}{way_out}"] if alone else [],
        [
            f"the pod mounts PersistentVolumeClaim {claim}, which is not in this file: if its accessModes are ReadWriteOnce, a "
            f"pod that a roll adds waits for it in vain; then write accessModes: [ReadOnlyMany] there{here}"
            for claim in unknown
        ],
    )
