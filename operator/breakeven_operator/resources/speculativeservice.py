"""SpeculativeService: what a person asks for. Its status is in `servicestatus.py`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from breakeven.errors import InputError
from breakeven.methods import ADAPTIVE_METHODS, MTP_ALIAS
from breakeven_operator.kinds import SERVICES, Ref
from breakeven_operator.packed import joined, without_notes
from breakeven_operator.resources.base import LABEL_PATTERN, Model, ObjectName, Rule
from breakeven_operator.resources.calibrationspec import AnswerCheck, Calibration
from breakeven_operator.resources.candidates import Candidates
from breakeven_operator.resources.figures import row
from breakeven_operator.resources.meta import Metadata
from breakeven_operator.resources.metricssource import MetricsSource
from breakeven_operator.resources.servicestatus import SpeculativeServiceStatus
from breakeven_operator.resources.updatepolicy import UpdatePolicy

_LOG = logging.getLogger(__name__)
# A CronJob's name has 52 characters and ours is `breakeven-<service>`.
MAX_SERVICE_NAME = 42


class TargetReference(Model):
    """The workload whose arm is decided, in the same namespace."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.kind == oldSelf.kind && self.name == oldSelf.name",
            "targetRef cannot be changed",
            "another SpeculativeService for another target",
        ),
    )

    api_version: str = row(
        "API group and version of the target.",
        default="apps/v1",
        max_length=127,
        pattern=r"^([a-z0-9.-]+/)?v[0-9][a-z0-9]*$",
    )
    kind: str = row(
        "Kind of the target. Deployments, StatefulSets, LeaderWorkerSets, Argo's Rollouts, and KServe's LLMInferenceServices "
        "and InferenceServices are rolled. Any other kind that owns its pods, directly or by ReplicaSets, is looked at.",
        default="Deployment",
        min_length=1,
        max_length=63,
        pattern=r"^[A-Z][A-Za-z0-9]*$",
    )
    name: ObjectName = Field(description="Name of the target.")
    container_name: str | None = row(
        "Container that runs vLLM. Without it: the only container whose command line starts vLLM.",
        min_length=1,
        max_length=63,
        pattern=LABEL_PATTERN,
    )


class ServiceLevel(Model):
    """Limits that an arm must keep; without one, the lowest mean latency wins."""

    tpot_p95_milliseconds: int | None = row(
        "95th percentile of time per output token, milliseconds.", ge=1, le=600000
    )
    ttft_p95_milliseconds: int | None = row(
        "95th percentile of time to first token, milliseconds.", ge=1, le=3600000
    )
    e2e_p95_milliseconds: int | None = row(
        "95th percentile of a whole request, milliseconds.",
        # The generated alias would read e2EP95.
        alias="e2eP95Milliseconds",
        ge=1,
        le=86400000,
    )


class SpeculativeServiceSpec(Model):
    """Which workload, which ways of speculating, and what may be done about it."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            # Not `name + '/' + string(k)`: string() has no known length, which exceeds the cost limit of a CRD.
            "!has(self.updatePolicy) || !has(self.updatePolicy.pinnedArm) || self.updatePolicy.pinnedArm == 'none' "
            "|| self.candidates.methods.exists(m, self.updatePolicy.pinnedArm.startsWith(m.name + '/') "
            "&& int(self.updatePolicy.pinnedArm.substring(m.name.size() + 1)) in m.draftLengths) "
            # int() fails on `schedule`; the rule's other alternative is true then, and CEL ignores the error.
            "|| self.candidates.methods.exists(m, self.updatePolicy.pinnedArm == m.name + '/schedule' "
            "&& (!has(m.schedule) || m.schedule == 'Auto')) "
            "|| self.candidates.methods.exists(m, self.updatePolicy.pinnedArm == m.name + '/adaptive' "
            "&& (!has(m.adaptiveVerification) || m.adaptiveVerification == 'Auto') "
            f"&& (m.method in {list(ADAPTIVE_METHODS)} || m.method.endsWith('{MTP_ALIAS}')))",
            "pinnedArm names no candidate",
            "none, <name>/<draft length> as in candidates, <name>/schedule or <name>/adaptive",
            lambda spec: (
                spec.update_policy.pinned_arm is None
                or spec.update_policy.pinned_arm in {arm.name for arm in spec.candidates.measurable_arms()}
                or any(
                    method.schedule == "Auto" and spec.update_policy.pinned_arm == method.scheduled_arm().name
                    for method in spec.candidates.methods
                )
            ),
            ".updatePolicy.pinnedArm",
        ),
        Rule(
            "!has(self.updatePolicy) || !has(self.updatePolicy.guards) || self.updatePolicy.guards.size() == 0 "
            "|| (has(self.metricsSource) && has(self.metricsSource.prometheus) && has(self.metricsSource.prometheus.address))",
            "guards have no Prometheus of the service's own",
            "metricsSource.prometheus.address: no expression of a service is asked with the installation's credentials",
            lambda spec: not spec.update_policy.guards or spec.metrics_source.prometheus.address is not None,
            ".updatePolicy.guards",
        ),
    )

    target_ref: TargetReference = Field(description="The workload whose pods run vLLM; immutable.")
    control_of: ObjectName | None = row(
        "Name of the SpeculativeService of which this one is the standing control. Its target, one pod behind the same Service, keeps "
        "the other arm, so that pods of both arms show the speedup of now. Profiles of the named service count; a control is never "
        "calibrated."
    )
    paused: bool = row(
        "Change nothing and start no calibration, nor the next arm of one, until set to false again; "
        "figures are still reported, and an arm under measurement is measured to its end.",
        default=False,
    )
    update_policy: UpdatePolicy = row(
        "When the arm may change, and how sure the operator must be.", default=UpdatePolicy()
    )
    candidates: Candidates = Field(description="What may run beside no speculation.")
    slo: ServiceLevel = row("Latency limits an arm must keep.", default=ServiceLevel())
    calibration: Calibration = row(
        "How the arms are measured: on pods of our own, never on serving ones.", default=Calibration()
    )
    metrics_source: MetricsSource = row(
        "Where load and latency of the target are read.", default=MetricsSource()
    )

    @property
    def answer_check(self) -> AnswerCheck:
        """Whether answers are compared, and what follows: what the spec says, else what suits the mode."""
        check = self.calibration.answers.check
        if check is not None:
            return check
        return AnswerCheck.REQUIRE if self.update_policy.mode.writes else AnswerCheck.WARN


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
    spec: SpeculativeServiceSpec = Field(description="What is wanted.")
    status: SpeculativeServiceStatus = row(
        "What is, written by the operator.", default=SpeculativeServiceStatus()
    )

    @classmethod
    def read(cls, data: Mapping[str, Any], where: str) -> Self:
        """Parse what the API server or a file holds; notes of its status that no operator of this version wrote are forgotten."""
        status = data.get("status")
        if not isinstance(status, Mapping) or not status:
            return super().read(data, where)
        try:
            return super().read({**data, "status": joined(status)}, where)
        except (ValueError, AttributeError, TypeError) as error:
            problem = str(error)
        except InputError as error:
            problem = f"have something else: {error.problem}"[:200]
        found = super().read({**data, "status": without_notes(status)}, where)
        _forgotten(where, problem)
        return found

    @property
    def ref(self) -> Ref:
        """The service's own address."""
        return Ref(SERVICES, self.metadata.namespace, self.metadata.name, self.metadata.uid)

    def with_candidates(self, candidates: Candidates) -> Self:
        """The same service with other candidates, such as those whose schedules were measured."""
        return self.replace(spec=self.spec.replace(candidates=candidates))

    def with_status(self, status: SpeculativeServiceStatus) -> Self:
        """The same service with another status."""
        return self.replace(status=status)


@lru_cache(maxsize=1024)
def _forgotten(where: str, problem: str) -> None:
    """Warn, once for each service and problem: whoever may write a status may write it again and again."""
    _LOG.warning("%s: status.workings.notes %s; they are forgotten", where, problem)
