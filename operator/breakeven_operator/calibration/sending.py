"""The requests of a run, fixed at its start: lengths, the file of prompts and its mount, imposed acceptance.

The file reaches the load driver as a read-only volume and is read there. The operator reads a ConfigMap's key, checks it
before a GPU is held, and forgets it: neither a plan nor a message holds anything of a prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from breakeven.errors import InputError
from breakeven.load_driver.dataset import Dataset, dataset_of
from breakeven.load_driver.lengths import EmpiricalLengths, LengthPair
from breakeven.load_driver.sent_workload import Sampling, SentWorkload
from breakeven_operator.calibration.podcopy import NotCopyableError
from breakeven_operator.calibration.transition import RunView
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.ports import Manifest
from breakeven_operator.resources.calibrationrun import CalibrationPlan
from breakeven_operator.resources.calibrationspec import PromptSource, WorkloadSpec
from breakeven_operator.resources.speculativeservice import SpeculativeService

DEFAULT_PROMPT_TOKENS = 512
DEFAULT_OUTPUT_TOKENS = 256
SYNTHETIC_ACCEPTANCE = "synthetic acceptance"
"""Name, in points, of the text of an engine that accepts drafts by chance."""
_LEAST_SHARED_PERCENT, _MOST_SHARED_PERCENT = 5, 95
"""Shares of live prompts in the prefix cache that a calibration repeats: fewer change nothing, and some of a prompt is read."""
VOLUME = "breakeven-prompts"
MOUNT_PATH = "/var/run/breakeven/prompts"


NOTHING_SENT: Mapping[str, Any] = {
    "prompt_tokens": DEFAULT_PROMPT_TOKENS,
    "output_tokens": DEFAULT_OUTPUT_TOKENS,
}


def planned_workload(view: RunView, service: SpeculativeService) -> Mapping[str, Any]:
    """The workload of the service as fields of a plan: mean lengths, and all else as JSON; missing lengths are the target's live ones, else 512 and 256.

    Made-up prompts share as much of their beginning as the target's prefix cache holds of live ones.

    Raises:
        NotCopyableError: the file of prompts is not there, or is none.
    """
    given = service.spec.calibration.workload
    workload = _sharing(view, given)
    _check_prompts(view, workload.prompts)
    beside = workload.replace(prompt_tokens=None, output_tokens=None).to_json_object()
    document = json.dumps(beside, separators=(",", ":")) if any(beside.values()) else None
    prompt_tokens, output_tokens = _lengths(view, workload)
    return {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens, "workload": document}


def _lengths(view: RunView, workload: WorkloadSpec) -> tuple[int, int]:
    pairs = _pairs(workload)
    if pairs is not None:
        return max(1, round(pairs.mean_prompt_tokens)), max(2, round(pairs.mean_output_tokens))
    if workload.prompt_tokens is not None and workload.output_tokens is not None:
        return workload.prompt_tokens, max(2, workload.output_tokens)
    seen = view.seen_lengths
    if seen is not None and seen.prompt_tokens is not None and seen.output_tokens is not None:
        return max(1, round(seen.prompt_tokens)), max(2, round(seen.output_tokens))
    return DEFAULT_PROMPT_TOKENS, DEFAULT_OUTPUT_TOKENS


def _sharing(view: RunView, workload: WorkloadSpec) -> WorkloadSpec:
    """The workload with the share of prompts that live ones have in common, if nobody says which one or which prompts."""
    prompts, seen = workload.prompts or PromptSource(), view.seen_lengths
    if (
        seen is None
        or seen.prefix_hit_ratio is None
        or prompts.sources
        or prompts.shared_prefix_percent is not None
    ):
        return workload
    percent = min(round(100 * seen.prefix_hit_ratio), _MOST_SHARED_PERCENT)
    if percent < _LEAST_SHARED_PERCENT:
        return workload
    return workload.replace(prompts=prompts.replace(shared_prefix_percent=percent))


def _check_prompts(view: RunView, prompts: PromptSource | None) -> None:
    """Refuse a missing or unreadable file of prompts before the pod holds a GPU.

    A file that the operator may not read is left to the pod: its driver refuses it later.
    """
    if prompts is None:
        return
    if prompts.persistent_volume_claim is not None:
        name = prompts.persistent_volume_claim.claim_name
        if name not in {claim["metadata"]["name"] for claim in view.claims}:
            raise _refused(f"workload.prompts: PersistentVolumeClaim {name} is not in this namespace")
    if prompts.config_map is None or prompts.config_map.name not in view.config_maps:
        return
    where = f"ConfigMap {prompts.config_map.name}, key {prompts.config_map.key}"
    text = text_of(view.config_maps, prompts.config_map.name, prompts.config_map.key, "workload.prompts")
    try:
        dataset_of(text, where, "prompts", prompts.category)
    except InputError as error:
        raise _refused(f"workload.prompts: {error}") from None


def text_of(config_maps: Mapping[str, Manifest | None], name: str, key: str, what: str) -> str:
    """The text that stands under a ConfigMap's key; `what` asks for it.

    Raises:
        NotCopyableError: there is no such ConfigMap or key, or its value is no text.
    """
    manifest = config_maps[name]
    data = (manifest or {}).get("data") or {}
    if (found := data.get(key)) is not None:
        return str(found)
    if manifest is None:
        problem = f"{name} is not in this namespace"
    elif key in (manifest.get("binaryData") or {}):
        problem = f"{name}, key {key}: binary data; expected UTF-8 text under data"
    else:
        # People name keys, and names may reveal much; their number is enough to find the mistake.
        problem = f"{name} has no key {key} ({len(data)} others)"
    raise _refused(f"{what}: ConfigMap {problem}")


def _refused(message: str) -> NotCopyableError:
    return NotCopyableError(ClusterReason.INPUT_REFUSED, message)


def named_files(run: Manifest, service: Manifest | None) -> dict[str, set[str]]:
    """The files in ConfigMaps that a run reads before it starts: keys by name.

    They are its imports, and the prompts that it or its service names.
    """
    spec, of_service = run["spec"], (service or {}).get("spec") or {}
    workloads = (spec.get("workload"), (of_service.get("calibration") or {}).get("workload"))
    prompts = [((workload or {}).get("prompts") or {}).get("configMap") for workload in workloads]
    found: dict[str, set[str]] = {}
    for one in filter(None, prompts):
        found.setdefault(one["name"], set()).add(one["key"])
    for one in filter(None, (given.get("configMap") for given in spec.get("importFrom") or ())):
        found.setdefault(one["name"], set()).update(one["keys"])
    return found


def workload_spec(document: str | None) -> WorkloadSpec:
    """The workload that a plan holds, which is readable: see the rules of `CalibrationPlan`."""
    return WorkloadSpec.read(json.loads(document), "workload") if document is not None else WorkloadSpec()


def own_prompts(plan: CalibrationPlan) -> bool:
    """Whether the prompts are the owner's users' own; the engine's last words may then repeat one."""
    prompts = workload_spec(plan.workload).prompts
    return prompts is not None and bool(prompts.sources)


def imposed(document: str | None, config: Mapping[str, Any] | None, k: int) -> Mapping[str, Any] | None:
    """The speculative configuration of a calibration pod, with imposed acceptance if the plan's workload asks for it."""
    synthetic = workload_spec(document).synthetic_acceptance
    if config is None or synthetic is None or k == 0:
        return config
    kept = {key: value for key, value in config.items() if not key.startswith("synthetic_acceptance_")}
    return {
        **kept,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": synthetic.of_length(k),
    }


def file_of(prompts: PromptSource | None) -> str | None:
    """Where the load driver finds the file of prompts; None if there is none."""
    if prompts is None:
        return None
    if prompts.config_map is not None:
        return f"{MOUNT_PATH}/{prompts.config_map.key}"
    source = prompts.persistent_volume_claim or prompts.image
    return f"{MOUNT_PATH}/{source.path}" if source is not None else None


def volume_of(prompts: PromptSource | None) -> dict[str, Any] | None:
    """The volume that holds the file of prompts; None if there is none."""
    if prompts is None:
        return None
    config_map, claim = prompts.config_map, prompts.persistent_volume_claim
    if config_map is not None:
        items = [{"key": config_map.key, "path": config_map.key}]
        return {"name": VOLUME, "configMap": {"name": config_map.name, "items": items}}
    if claim is not None:
        return {"name": VOLUME, "persistentVolumeClaim": {"claimName": claim.claim_name, "readOnly": True}}
    return {"name": VOLUME, "image": {"reference": prompts.image.reference}} if prompts.image else None


def mount_of(prompts: PromptSource | None) -> list[dict[str, Any]]:
    """How the load driver mounts the file of prompts."""
    mount = {"name": VOLUME, "mountPath": MOUNT_PATH, "readOnly": True}
    return [mount] if volume_of(prompts) is not None else []


def text_name(prompts: PromptSource) -> str:
    """Name, in points, of the text of a file."""
    return PurePosixPath(file_of(prompts) or "prompts").stem[:64]


def sent(
    spec: WorkloadSpec, prompt_tokens: int, output_tokens: int, dataset: Dataset | None, *, drafts: bool
) -> SentWorkload:
    """The workload as the load driver takes it; imposed acceptance means something only if the engine drafts.

    Raises:
        InputError: a figure is out of range.
    """
    given = dict(spec.sampling or ())
    sampling = {name: value for name, value in given.items() if value is not None}
    imposing = drafts and spec.synthetic_acceptance is not None
    shared = spec.prompts.shared_prefix_percent if spec.prompts is not None else None
    return SentWorkload(
        prompt_tokens,
        output_tokens,
        lengths=_pairs(spec),
        sampling=Sampling(**sampling),
        prefix_share=(shared or 0) / 100,
        dataset=dataset,
        label=SYNTHETIC_ACCEPTANCE if imposing else None,
    )


def _pairs(spec: WorkloadSpec) -> EmpiricalLengths | None:
    if not spec.lengths:
        return None
    return EmpiricalLengths(
        [LengthPair(row.prompt_tokens, row.output_tokens) for row in spec.lengths],
        [float(row.weight or 1) for row in spec.lengths],
    )
