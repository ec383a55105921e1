"""Settings from the environment, checked once at start: a wrong one ends the process with one clear line."""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from breakeven import __version__
from breakeven.errors import InputError
from breakeven.intake import wrong_field
from breakeven.serving.opt_in import VARIABLE
from breakeven.serving.promql import SAME_LABELS, LabelNames
from breakeven_operator.resources.base import Model
from breakeven_operator.resources.candidates import Candidates
from breakeven_operator.resources.updatepolicy import Timing

# Variables that the kubelet adds for every Service of the namespace whose name begins like ours.
_SERVICE_LINK = re.compile(r"^BREAKEVEN_(.+_)?(SERVICE_(HOST|PORT.*)|PORT(_\d+_(TCP|UDP|SCTP).*)?)$")


def _wrong(problem: str, wanted: str, **more: str) -> PydanticCustomError:
    return PydanticCustomError("rule", "{problem}", {"problem": problem, "wanted": wanted, **more})


def _checked(good: Callable[[str], object], problem: str, expected: str) -> AfterValidator:
    def check(text: str) -> str:
        if text and not good(text):
            raise _wrong(problem.format(text), expected)
        return text

    return AfterValidator(check)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _listed(text: str) -> tuple[str, ...]:
    return tuple(sorted({part.strip() for part in text.split(",") if part.strip()}))


def _label_names(text: str) -> LabelNames:
    try:
        return LabelNames.of(_listed(text))
    except ValueError as error:
        raise _wrong(f"is {text!r}", str(error)) from error


def _json_of(model: type[Model], what: str) -> BeforeValidator:
    def read(text: str) -> Model:
        try:
            return model.read(json.loads(text), "")
        except InputError as error:
            problem = ": ".join(filter(None, (error.where, error.problem)))
            wanted = error.expected
        except (ValueError, RecursionError, AttributeError) as error:
            problem, wanted = f"is no JSON ({error})", what
        raise _wrong(problem, wanted)

    return BeforeValidator(read)


_Label = Annotated[
    str,
    _checked(
        re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?").fullmatch,
        "is {!r}",
        "a name of lower-case letters, digits and -",
    ),
]
# The value may hold what it must not: credentials in an address are not repeated.
_Address = Annotated[
    str,
    _checked(
        re.compile(r"https?://[^\s@]+").fullmatch, "is not usable", "http://host:port without credentials"
    ),
]
_IpAddress = Annotated[str, _checked(_is_address, "is {!r}", "an IP address")]
_Prefix = Annotated[
    str,
    _checked(
        re.compile(r"(/[A-Za-z0-9._~-]{1,63}){1,8}").fullmatch,
        "is {!r}",
        "a path such as /breakeven, without a slash at its end",
    ),
]
_File = Annotated[str, _checked(os.path.isfile, "{!r} is no file", "a file that can be read")]


class Settings(BaseModel):
    """The operator's own settings; every field is one environment variable of the same name with prefix BREAKEVEN_.

    Attributes:
        identity: of this replica (BREAKEVEN_POD_NAME, else the host's name and process id).
        namespace: the operator's own; the Lease lives there.
        kubeconfig: file to use (KUBECONFIG); empty: the pod's ServiceAccount.
        watch_namespaces: where services are looked for; empty: everywhere.
        cycle_s: time between two cycles that nothing has woken.
        relist_s: all objects of a kind are read again after so long, in case a watch has lost something.
        status_refresh_s: figures and sentences of a status are renewed at most this often.
        prometheus_address: for services that name none; empty: they must.
        prometheus_bearer_file, prometheus_ca_file: for that address alone.
        prometheus_timeout_s: of one query of any Prometheus, from its beginning to the last byte of the answer.
        prometheus_label_names: what that server calls the labels namespace and pod, such as pod=exported_pod.
        prometheus_allowed_addresses: loopback and link-local servers that services may name all the same.
        trial_image: the operator's own, which has the load driver; trial_image_pull_policy: empty: the cluster's default.
        trial_longest_s: of a calibration, whatever its budget says.
        trial_cluster_role: with the drivers' rights.
        gpu_label: node label that names the GPU class.
        allowed_drafters: how the drafters begin that services may name; empty: all.
        watch_annotated: make services for workloads whose annotation asks for one.
        default_candidates: of such services, as JSON; None if there are none.
        most_watched, most_watched_per_namespace: such services, at most.
        timing: times that decisions wait, as JSON; production has the defaults.
        bind_address, port: of /metrics and /readyz.
        probe_port: of /healthz, at the same address; 0: there is none.
        dashboard_url: address of the Grafana dashboard that the board links to; empty: none.
        runbook_url_prefix: what stands before ALERT.md in the board's links; empty: none.
        board_port: of the board, on the loopback; 0: there is none.
        board_address: where it listens besides, for readers with a token; empty: nowhere.
        board_path_prefix: of its addresses; empty: none.
        next_rollout: whether the chart installed the policy that puts arms into owners' rollouts.
        foreign_images: whether the chart installed the policy that says who may name images that a target never ran.
        gpu_price_per_hour: by which statuses and the board show money; None if they show none.
        log_format: json, or text for people.
    """

    model_config = ConfigDict(
        frozen=True, alias_generator=lambda name: f"BREAKEVEN_{re.sub('_S$', '_SECONDS', name.upper())}"
    )

    identity: str = Field(
        default_factory=lambda: f"{os.uname().nodename}-{os.getpid()}", alias="BREAKEVEN_POD_NAME"
    )
    namespace: _Label = "default"
    kubeconfig: str = Field(default="", alias="KUBECONFIG")
    watch_namespaces: Annotated[tuple[_Label, ...], BeforeValidator(_listed)] = ()
    cycle_s: float = Field(default=15.0, ge=0.1, le=3600)
    relist_s: float = Field(default=3600.0, ge=60, le=604800)
    status_refresh_s: float = Field(default=60.0, ge=0, le=86400)
    prometheus_address: _Address = ""
    prometheus_bearer_file: _File = ""
    prometheus_ca_file: _File = ""
    prometheus_timeout_s: int = Field(default=10, ge=1, le=300)
    prometheus_label_names: Annotated[LabelNames, BeforeValidator(_label_names)] = SAME_LABELS
    prometheus_allowed_addresses: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    lease_name: _Label = "breakeven-operator"
    lease_s: float = Field(default=30.0, ge=6, le=600)
    trial_image: str = f"ghcr.io/breakeven-dev/breakeven:{__version__}"
    trial_image_pull_policy: Literal["", "Always", "IfNotPresent", "Never"] = ""
    trial_priority_class: str = ""
    trial_queue_name: str = ""
    trial_ttl_s: int = Field(default=600, ge=0, le=604800)
    trial_longest_s: int = Field(default=86400, ge=60, le=604800)
    gpu_label: str = "nvidia.com/gpu.product"
    trial_cluster_role: str = "breakeven-trial"
    allowed_drafters: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    watch_annotated: Literal["true", "false"] = "false"
    default_candidates: Annotated[
        Candidates | None, _json_of(Candidates, "candidates as a SpeculativeService has them")
    ] = None
    most_watched: int = Field(default=50, ge=1, le=1000)
    most_watched_per_namespace: int = Field(default=10, ge=1, le=1000)
    timing: Annotated[Timing, _json_of(Timing, "an object of times as the chart's value timing has it")] = (
        Timing()
    )
    max_parallel_rolls: int = Field(default=3, ge=1, le=1000)
    max_parallel_calibrations: int = Field(default=1, ge=1, le=100)
    bind_address: str = "0.0.0.0"  # noqa: S104 - in a pod, the kubelet and Prometheus ask
    port: int = Field(default=8080, ge=0, le=65535)
    probe_port: int = Field(default=0, ge=0, le=65535)
    dashboard_url: _Address = ""
    runbook_url_prefix: _Address = ""
    board_port: int = Field(default=0, ge=0, le=65535)
    board_address: _IpAddress = ""
    board_path_prefix: _Prefix = ""
    next_rollout: Literal["true", "false"] = "false"
    foreign_images: Literal["true", "false"] = "false"
    gpu_price_per_hour: float | None = Field(default=None, ge=0, le=1e6, allow_inf_nan=False)
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_format: Literal["json", "text"] = "json"
    dry_run: Literal["true", "false"] = "false"

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Services that are made must have candidates that the installation allows."""
        methods = self.default_candidates.methods if self.default_candidates is not None else ()
        problem = None if methods or self.watch_annotated == "false" else "is missing"
        strays = (one.strays_from(self.allowed_drafters) for one in methods)
        problem = next(filter(None, (problem, *strays)), None)
        if problem is not None:
            given, _, wanted = problem.partition("; expected ")
            wanted = wanted or "candidates for the services of annotated workloads"
            raise _wrong(given, wanted, field="BREAKEVEN_DEFAULT_CANDIDATES")
        return self


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Parse and check every setting; an empty one is as good as absent.

    Raises:
        InputError: one line that names the variable, its value and what was expected.
    """
    known = {str(field.alias) for field in Settings.model_fields.values()}
    for name in sorted(environment):
        foreign = name.startswith("BREAKEVEN_SIM") or _SERVICE_LINK.match(name)
        # A misspelt variable would silently leave a default in force.
        if name.startswith("BREAKEVEN_") and name not in known | {VARIABLE} and not foreign:
            raise InputError(name, "is not a setting", f"one of {', '.join(sorted(known))}")
    try:
        return Settings.model_validate({name: text for name, text in environment.items() if text})
    except ValidationError as error:
        raise wrong_field(error, "", "is a setting") from None
