"""SpeculativeService: what a person asks for. Its status is in `servicestatus.py`."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from breakeven.arm import NO_SPECULATION, Arm
from breakeven_operator.resources.base import (
    API_VERSION,
    LABEL_PATTERN,
    LIST_SET,
    ArmName,
    Model,
    ObjectName,
    Rule,
    list_map,
)
from breakeven_operator.resources.calibration import Calibration
from breakeven_operator.resources.meta import Metadata
from breakeven_operator.resources.metricssource import MetricsSource
from breakeven_operator.resources.servicestatus import SpeculativeServiceStatus

OPT_IN_ANNOTATION = f"{API_VERSION.split('/')[0]}/speculative-config"
OPT_IN_VARIABLE = "BREAKEVEN_SPECULATIVE_CONFIG"
# A CronJob's name has 52 characters and ours is `breakeven-<service>`.
MAX_SERVICE_NAME = 42

# Methods that load a drafter of their own, and methods that have none. Others (mtp, dspark, ...) may do either.
_NEEDS_MODEL = ("draft_model", "eagle", "eagle3", "dflash")
_WITHOUT_MODEL = ("ngram", "ngram_gpu", "suffix")


class TargetReference(Model):
    """The workload whose pods run vLLM, in the same namespace."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.kind == oldSelf.kind && self.name == oldSelf.name",
            "targetRef cannot be changed",
            "another SpeculativeService for another target",
        ),
    )

    api_version: Annotated[Literal["apps/v1"], Field(description="API group and version of the target.")] = (
        "apps/v1"
    )
    kind: Annotated[Literal["Deployment"], Field(description="Kind of the target.")] = "Deployment"
    name: Annotated[ObjectName, Field(description="Name of the target.")]
    container_name: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=63,
            pattern=LABEL_PATTERN,
            description="Container that runs vLLM. Without it: the only container whose command line starts vLLM.",
        ),
    ] = None


class Mode(StrEnum):
    """What the operator may do with a decision."""

    # Not `Off`: YAML reads that word unquoted as false.
    DISABLED = "Disabled"
    RECOMMEND = "Recommend"
    ROLLING_UPDATE = "RollingUpdate"


class Drain(StrEnum):
    """What is required of the target's pods before they are restarted."""

    REQUIRED = "Required"
    ACCEPT_LOSS = "AcceptLoss"


class UpdatePolicy(Model):
    """When the arm may change, and how sure the operator must be."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            # `has`: the API server holds the default {} of updatePolicy against this rule without its fields' defaults.
            "!has(self.exitMarginPercent) || !has(self.minGainPercent) "
            "|| self.exitMarginPercent <= self.minGainPercent",
            "exitMarginPercent exceeds minGainPercent: an arm would be left at a gain at which it is entered",
            "exitMarginPercent at most minGainPercent",
            lambda policy: policy.exit_margin_percent <= policy.min_gain_percent,
            ".exitMarginPercent",
        ),
    )

    mode: Annotated[
        Mode,
        Field(
            description="Disabled: decide nothing, measure only when asked. Recommend: decide and report, change nothing. "
            "RollingUpdate: also roll the target to the best arm (needs the opt-in lines in the target's manifest)."
        ),
    ] = Mode.RECOMMEND
    pinned_arm: Annotated[
        ArmName | None,
        Field(
            description="Run this arm whatever the figures say: none, or <method name>/<draft length> of a candidate. "
            "Figures are still reported; mode decides whether the target is rolled to it."
        ),
    ] = None
    cooldown_seconds: Annotated[
        int,
        Field(
            ge=0,
            le=604800,
            description="Least time between two rolls. A roll costs minutes of GPU per replica, so it is rare by default.",
        ),
    ] = 3600
    stabilization_window_seconds: Annotated[
        int,
        Field(
            ge=0,
            le=86400,
            description="How long another arm must stay the best one before a roll to it starts.",
        ),
    ] = 900
    min_gain_percent: Annotated[
        int,
        Field(
            ge=0,
            le=100,
            description="An arm is entered only if the lower bound of its speedup is above 1 by this much, against no "
            "speculation and against the running arm. Below about 5 % a gain is noise.",
        ),
    ] = 5
    exit_margin_percent: Annotated[
        int,
        Field(
            ge=0,
            le=100,
            description="A speculative arm is left when the upper bound of its speedup falls below 1 by way of this margin: "
            "upper bound < 1 + margin.",
        ),
    ] = 0
    confidence_percent: Annotated[
        int, Field(ge=50, le=99, description="Confidence of every interval (two-sided).")
    ] = 90
    max_utilization_percent: Annotated[
        int,
        Field(
            ge=10,
            le=95,
            description="Highest utilisation (load over saturation) at which predictions count. Above it they are "
            "extrapolation: no arm is entered on them, and no roll starts that would exceed it on the pods left.",
        ),
    ] = 75
    horizon_seconds: Annotated[
        int,
        Field(
            ge=1,
            le=604800,
            description="How long the present load is assumed to last: a roll must earn its own cost within this time.",
        ),
    ] = 14400
    drain: Annotated[
        Drain,
        Field(
            description="Required: no roll unless the target drains requests (--shutdown-timeout, preStop, "
            "terminationGracePeriodSeconds). AcceptLoss: roll anyway; requests in flight are cut off."
        ),
    ] = Drain.REQUIRED
    roll_deadline_seconds: Annotated[
        int | None,
        Field(
            ge=1,
            le=86400,
            description="When a roll that has not finished is undone. Without it: from measured start-up times, replicas "
            "and the target's surge.",
        ),
    ] = None
    unschedulable_deadline_seconds: Annotated[
        int,
        Field(ge=1, le=86400, description="When a roll whose new pod finds no GPU is undone."),
    ] = 300
    backoff_seconds: Annotated[
        int,
        Field(
            ge=0,
            le=86400,
            description="Pause after a roll that was undone; doubles with each one in a row, up to 16 times as long.",
        ),
    ] = 1800


class SpeculativeMethod(Model):
    """One way of speculating, tried with several draft lengths."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.name != 'none'",
            "the name none is taken by the arm without speculation, which is always a candidate",
            "another name",
            lambda method: method.name != "none",
            ".name",
        ),
        Rule(
            f"!(self.method in {list(_NEEDS_MODEL)}) || has(self.model)",
            f"methods {', '.join(_NEEDS_MODEL)} load a drafter and none is named",
            "the drafter in model",
            lambda method: method.method not in _NEEDS_MODEL or method.model is not None,
            ".model",
        ),
        Rule(
            f"!(self.method in {list(_WITHOUT_MODEL)}) || !has(self.model)",
            f"methods {', '.join(_WITHOUT_MODEL)} load no drafter",
            "no model",
            lambda method: method.method not in _WITHOUT_MODEL or method.model is None,
            ".model",
        ),
        Rule(
            "!has(self.options) || !(has(self.options.method) || has(self.options.model) "
            "|| has(self.options.num_speculative_tokens))",
            "options repeats method, model or num_speculative_tokens",
            "the fields method, model and draftLengths beside options",
            lambda method: not {"method", "model", "num_speculative_tokens"} & method.options.keys(),
            ".options",
        ),
        Rule(
            "!has(self.options) || !has(self.options.rejection_sample_method) "
            "|| self.options.rejection_sample_method != 'synthetic'",
            "rejection_sample_method synthetic accepts drafts by chance, so its answers are wrong",
            "a lossless rejection_sample_method, or none",
            lambda method: method.options.get("rejection_sample_method") != "synthetic",
            ".options.rejection_sample_method",
        ),
    )

    name: Annotated[
        str,
        Field(
            min_length=1,
            max_length=24,
            pattern=LABEL_PATTERN,
            description="Your name for it; its arms are called <name>/<draft length>.",
        ),
    ]
    method: Annotated[
        str,
        Field(
            min_length=1,
            max_length=64,
            pattern=r"^[a-z][a-z0-9_]*$",
            description="vLLM's word: draft_model, eagle, eagle3, mtp, ngram, suffix, dflash, dspark, or any other that "
            "the engine's version knows.",
        ),
    ]
    model: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=512,
            # A newline or blank inside would only confuse whoever reads the pod's command line.
            pattern=r"^[^\s]+$",
            description="Drafter: a Hugging Face repository or a path inside the container.",
        ),
    ] = None
    draft_lengths: Annotated[
        tuple[Annotated[int, Field(ge=1, le=32)], ...],
        Field(
            min_length=1,
            max_length=6,
            json_schema_extra=LIST_SET,
            description="Draft lengths (tokens per step) to measure and choose from. A short and a long one predict "
            "those between to a few percent.",
        ),
    ] = (2, 7)
    options: Annotated[
        dict[str, Any],
        Field(
            default_factory=dict,
            max_length=32,
            description="Further keys of vLLM's --speculative-config, passed on as they are: prompt_lookup_max, "
            "draft_tensor_parallel_size, quantization, ...",
            json_schema_extra={
                "additionalProperties": None,
                "x-kubernetes-preserve-unknown-fields": True,
                "properties": {
                    # Declared because a CEL rule sees only declared keys of an open object.
                    "method": {
                        "type": "string",
                        "maxLength": 64,
                        "description": "Not allowed here: use method beside options.",
                    },
                    "model": {
                        "type": "string",
                        "maxLength": 512,
                        "description": "Not allowed here: use model beside options.",
                    },
                    "num_speculative_tokens": {
                        "type": "integer",
                        "description": "Not allowed here: use draftLengths.",
                    },
                    "rejection_sample_method": {
                        "type": "string",
                        "maxLength": 64,
                        "description": "vLLM's acceptance rule; synthetic is refused because it changes the answers.",
                    },
                },
            },
        ),
    ]

    def arms(self) -> tuple[Arm, ...]:
        """Its arms, by draft length."""
        return tuple(Arm(self.method, k, self.name) for k in sorted(self.draft_lengths))

    def speculative_config(self, k: int) -> str:
        """The value of vLLM's --speculative-config at draft length `k`: one line of JSON, keys in a fixed order."""
        config: dict[str, Any] = {"method": self.method}
        if self.model is not None:
            config["model"] = self.model
        config["num_speculative_tokens"] = k
        # Sorted at every depth: another order of the same keys would be another annotation, so a restart.
        config |= json.loads(json.dumps(self.options, sort_keys=True))
        return json.dumps(config, separators=(",", ":"), ensure_ascii=False)


class Candidates(Model):
    """What may run on the target beside no speculation, which is always a candidate."""

    methods: Annotated[
        tuple[SpeculativeMethod, ...],
        Field(
            min_length=1,
            max_length=6,
            json_schema_extra=list_map("name"),
            description="Methods to try. Every arm costs calibration time: one engine start plus one point per load.",
        ),
    ]

    def arms(self) -> tuple[Arm, ...]:
        """No speculation first, then every method at every draft length."""
        return (NO_SPECULATION, *(arm for method in self.methods for arm in method.arms()))

    def speculative_config(self, arm: Arm) -> str:
        """What the target's annotation holds for `arm`; `null` for no speculation.

        Raises:
            KeyError: no candidate has this arm.
        """
        if arm == NO_SPECULATION:
            return "null"
        for method in self.methods:
            if arm in method.arms():
                return method.speculative_config(arm.k)
        raise KeyError(arm.name)


class ServiceLevel(Model):
    """Limits that an arm must keep; without one, the lowest mean latency wins."""

    tpot_p95_milliseconds: Annotated[
        int | None,
        Field(ge=1, le=600000, description="95th percentile of time per output token, milliseconds."),
    ] = None
    ttft_p95_milliseconds: Annotated[
        int | None,
        Field(ge=1, le=3600000, description="95th percentile of time to first token, milliseconds."),
    ] = None
    e2e_p95_milliseconds: Annotated[
        int | None,
        Field(
            # The generated alias would read e2EP95.
            alias="e2eP95Milliseconds",
            ge=1,
            le=86400000,
            description="95th percentile of a whole request, milliseconds.",
        ),
    ] = None


class SpeculativeServiceSpec(Model):
    """Which workload, which ways of speculating, and what may be done about it."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            # Not `name + '/' + string(k)`: string() has no known length, which exceeds the cost limit of a CRD.
            "!has(self.updatePolicy) || !has(self.updatePolicy.pinnedArm) || self.updatePolicy.pinnedArm == 'none' "
            "|| self.candidates.methods.exists(m, self.updatePolicy.pinnedArm.startsWith(m.name + '/') "
            "&& int(self.updatePolicy.pinnedArm.substring(m.name.size() + 1)) in m.draftLengths)",
            "pinnedArm names no candidate",
            "none or <name>/<draft length> as in candidates",
            lambda spec: (
                spec.update_policy.pinned_arm is None
                or spec.update_policy.pinned_arm in {arm.name for arm in spec.candidates.arms()}
            ),
            ".updatePolicy.pinnedArm",
        ),
    )

    target_ref: Annotated[TargetReference, Field(description="The workload whose pods run vLLM; immutable.")]
    paused: Annotated[
        bool,
        Field(
            description="Change nothing and start no calibration until set to false again; figures are still reported."
        ),
    ] = False
    update_policy: Annotated[
        UpdatePolicy, Field(description="When the arm may change, and how sure the operator must be.")
    ] = UpdatePolicy()
    candidates: Annotated[Candidates, Field(description="What may run beside no speculation.")]
    slo: Annotated[ServiceLevel, Field(description="Latency limits an arm must keep.")] = ServiceLevel()
    calibration: Annotated[
        Calibration,
        Field(description="How the arms are measured: on pods of our own, never on serving ones."),
    ] = Calibration()
    metrics_source: Annotated[
        MetricsSource, Field(description="Where load and latency of the target are read.")
    ] = MetricsSource()


class SpeculativeService(Model):
    """Decides whether, how and until which load a vLLM workload speculates."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"self.metadata.name.size() <= {MAX_SERVICE_NAME} && !self.metadata.name.contains('.')",
            "metadata.name is too long or has a dot for the CronJob breakeven-<name>",
            f"at most {MAX_SERVICE_NAME} characters, no dot",
            lambda service: (
                len(service.metadata.name) <= MAX_SERVICE_NAME and "." not in service.metadata.name
            ),
        ),
    )

    api_version: Literal["breakeven.dev/v1alpha1"] = "breakeven.dev/v1alpha1"
    kind: Literal["SpeculativeService"] = "SpeculativeService"
    metadata: Metadata
    spec: Annotated[SpeculativeServiceSpec, Field(description="What is wanted.")]
    status: Annotated[SpeculativeServiceStatus, Field(description="What is, written by the operator.")] = (
        SpeculativeServiceStatus()
    )
