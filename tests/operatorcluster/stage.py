"""The cluster with the operator in it, and one namespace of it through the eyes of who works there."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import signal
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from breakeven_operator.packed import whole
from localcluster import GpuNode, LocalCluster
from localcluster.audit import AuditEvent
from localcluster.free_ports import free_ports
from localcluster.plainhttp import Reader
from operatorcluster import manifests
from operatorcluster.administrator import Administrator
from operatorcluster.posing import Posers
from operatorcluster.target_engine import A100, COSTS
from operatorcluster.waiting import PATIENCE_S, until

CHART = Path(__file__).parents[2] / "charts" / "breakeven"
HOME = "breakeven"
OPERATOR = "system:serviceaccount:breakeven:breakeven"
# The one with a single GPU, and the two of one class of which only the first knows an image of its own.
NODES = (GpuNode("a100-0", A100, 16), GpuNode("l4-0", "NVIDIA-L4", 1), GpuNode("l40s-1", "NVIDIA-L40S", 1))
SECLUDED = GpuNode("l40s-0", "NVIDIA-L40S", 1)
# Two arms take half a minute on a quiet machine.
CALIBRATION_S = 400.0
SECLUDED_IMAGE = "registry.example.com/vllm-openai-patched:1"
# A kubelet waits ever longer before it starts a container again: the operator's, which a dozen tests kill, for five minutes.
_CRASHES = ("--crash-backoff-max", "10")
_OURS = "apis/breakeven.dev/v1alpha1"
_PATHS = {
    "specsvc": f"{_OURS}/{{}}/speculativeservices",
    "calrun": f"{_OURS}/{{}}/calibrationruns",
    "specprof": f"{_OURS}/{{}}/speculationprofiles",
    "deployment": "apis/apps/v1/{}/deployments",
    "statefulset": "apis/apps/v1/{}/statefulsets",
    "leaderworkerset": "apis/leaderworkerset.x-k8s.io/v1/{}/leaderworkersets",
    "rollout": "apis/argoproj.io/v1alpha1/{}/rollouts",
    "llminferenceservice": "apis/serving.kserve.io/v1alpha2/{}/llminferenceservices",
    "inferenceservice": "apis/serving.kserve.io/v1beta1/{}/inferenceservices",
    "replicaset": "apis/apps/v1/{}/replicasets",
    "pod": "api/v1/{}/pods",
    "job": "apis/batch/v1/{}/jobs",
    "cronjob": "apis/batch/v1/{}/cronjobs",
    "event": "apis/events.k8s.io/v1/{}/events",
    "serviceaccount": "api/v1/{}/serviceaccounts",
    "rolebinding": "apis/rbac.authorization.k8s.io/v1/{}/rolebindings",
}
Manifest = dict[str, Any]
_ITS_ANNOTATION: Manifest = {
    "spec": {"template": {"metadata": {"annotations": {manifests.ANNOTATION: "null"}}}}
}


class Stage:
    """A cluster in which the operator looks every second.

    Attributes:
        cluster: of this machine.
        posers: what Prometheus scrapes beside pods.
        api: its API server.
    """

    def __init__(self, cluster: LocalCluster, posers: Posers, api: Administrator) -> None:
        self.cluster = cluster
        self.posers = posers
        self.api = api

    def writes(self, namespace: str, resource: str = "deployments") -> list[AuditEvent]:
        """The operator's writes there, oldest first; status and other subresources left out."""
        return [
            event
            for event in self.cluster.audit_events()
            if event.user == OPERATOR
            and (event.namespace, event.resource, event.subresource) == (namespace, resource, "")
            and event.wrote
        ]

    def query(self, promql: str) -> list[dict[str, Any]]:
        """An instant query's result."""
        answer = Reader(self.cluster.prometheus_url).json(f"/api/v1/query?query={urllib.parse.quote(promql)}")
        return list(answer["data"]["result"]) if answer else []

    def log(self) -> list[dict[str, Any]]:
        """The lines of the operator's present process."""
        text = self.cluster.kubectl("logs", f"--namespace={HOME}", "deployment/breakeven").stdout
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def operator_pid(self) -> int:
        """The operator's process, found among all of the machine by the name of its pod."""
        (pod,) = Place(self, HOME).all("pod")
        wanted = f"BREAKEVEN_POD_NAME={pod['metadata']['name']}".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (process / "cmdline").read_bytes().split(b"\0")
                environment = (process / "environ").read_bytes().split(b"\0")
                if wanted in environment and b"run" in command:
                    found.append(int(process.name))
        (pid,) = found
        return pid

    @contextlib.contextmanager
    def operator_stopped(self) -> Iterator[int]:
        """Its process, which stands still meanwhile: what one finds is so until one has acted."""
        pid = self.running_operator()
        os.kill(pid, signal.SIGSTOP)
        try:
            yield pid
        finally:
            # It may have been killed.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def kill_operator(self, during: Callable[[], object] = lambda: True) -> None:
        """Ends its process while something is so, and returns when another one runs."""

        def killed() -> int:
            with self.operator_stopped() as pid:
                if not during():
                    return 0
                os.kill(pid, signal.SIGKILL)
                return pid

        self.running_operator(other_than=until("the operator can be killed meanwhile", killed))

    def running_operator(self, other_than: int = 0) -> int:
        """Its process, once one runs that is not the one given."""

        def look() -> int:
            with contextlib.suppress(ValueError):
                pid = self.operator_pid()
                return pid if pid != other_than else 0
            return 0

        return until("a process of the operator runs", look)

    @contextlib.contextmanager
    def place(self, words: str) -> Iterator[Place]:
        """A namespace; what was made in it is gone from the nodes at the end."""
        name = f"{words[:40].strip('-')}-{secrets.token_hex(3)}"
        # First what would make new pods, then what holds GPUs.
        first = (
            f"{_OURS}/speculativeservices",
            "apis/apps/v1/deployments",
            "apis/apps/v1/statefulsets",
            "apis/batch/v1/cronjobs",
        )
        with self.api.namespace(name, *first, wait=False):
            yield Place(self, name)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of every target that `manifests.target` makes on an A100, as the operator tells it."""
        with self.place("fingerprint") as place:
            place.apply(manifests.target(), manifests.service(updatePolicy={"mode": "Disabled"}))
            seen = place.until_service(
                "its target serves", lambda status: status.get("target", {}).get("readyReplicas") == 1
            )
            return str(seen["status"]["target"]["fingerprint"])


class Place:
    """One namespace.

    Attributes:
        stage: the cluster it is in.
        name: its name.
    """

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage = stage
        self.name = name

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """Output of kubectl in this namespace."""
        return self.stage.cluster.kubectl(*arguments, f"--namespace={self.name}", stdin=stdin).stdout

    def apply(self, *documents: Manifest, options: tuple[str, ...] = ()) -> None:
        """Kubectl apply, client-side unless the options say otherwise."""
        self.kubectl("apply", *options, "--filename=-", stdin=yaml.safe_dump_all(documents))

    def patch(self, kind: str, name: str, change: Manifest) -> None:
        """A merge patch."""
        self.stage.api.patch(f"/{_PATHS[kind].format(f'namespaces/{self.name}')}/{name}", change)

    def all(self, kind: str) -> list[Manifest]:
        """Every object of a kind."""
        path = _PATHS[kind].format(f"namespaces/{self.name}")
        answer = until(f"the API server answers /{path}", lambda: self.stage.api.json(f"/{path}"))
        return list(answer["items"])

    def get(self, kind: str, name: str) -> Manifest:
        """One object; empty when it is not there."""
        path = _PATHS[kind].format(f"namespaces/{self.name}")
        found = self.stage.api.json(f"/{path}/{name}") or {}
        # With its notes, in which figures stand that tests read.
        return (
            {**found, "status": whole(found["status"])}
            if kind == "specsvc" and found.get("status")
            else found
        )

    def writes(self, resource: str = "deployments") -> list[AuditEvent]:
        """The operator's writes here."""
        return self.stage.writes(self.name, resource)

    def annotation(self, name: str = manifests.TARGET) -> str | None:
        """The arm that the target's pod template asks for."""
        template = self.get("deployment", name)["spec"]["template"]["metadata"]
        value: str | None = (template.get("annotations") or {}).get(manifests.ANNOTATION)
        return value

    def manager(self, name: str = manifests.TARGET) -> list[str]:
        """Who owns that annotation."""
        deployment = self.stage.api.json(f"/{_PATHS['deployment'].format(f'namespaces/{self.name}')}/{name}")
        return [
            entry["manager"]
            for entry in deployment["metadata"]["managedFields"]
            if f'"f:{manifests.ANNOTATION}"' in json.dumps(entry.get("fieldsV1"))
        ]

    def until_service(
        self,
        what: str,
        holds: Callable[[Manifest], object],
        name: str = "chat",
        timeout_s: float = PATIENCE_S,
    ) -> Manifest:
        """The service, once its status is like that."""

        def look() -> Manifest | None:
            found = self.get("specsvc", name)
            return found if found and holds(found.get("status") or {}) else None

        return until(f"{name}: {what}", look, timeout_s=timeout_s, seen=lambda: self.told(name))

    def is_rolling(self) -> bool:
        """Whether a roll of `chat` is under way."""
        return bool((self.get("specsvc", "chat").get("status") or {}).get("rollout"))

    def pin(self, arm: str | None) -> None:
        """Let one arm run, or again the one that figures choose."""
        self.patch("specsvc", "chat", {"spec": {"updatePolicy": {"pinnedArm": arm}}})

    def until_runs(self, arm: str, replicas: int) -> Manifest:
        """The service, once so many replicas run an arm and no roll is under way."""
        return self.until_service(
            f"{replicas} replicas run {arm} and no roll is under way",
            lambda status: (
                (status.get("current") or {}).get("podsByArm") == [{"arm": arm, "pods": replicas}]
                and (status.get("rollout") or {}).get("phase", "Confirming") == "Confirming"
                and status["target"]["readyReplicas"] == replicas
            ),
        )

    def until_calibrated(self, name: str = "chat") -> Manifest:
        """The service, once a profile is in force; a run that fails is a failure at once."""

        def look() -> Manifest | None:
            for run in self.all("calrun"):
                status = run.get("status") or {}
                assert status.get("phase") != "Failed", _account(status)
            found = self.get("specsvc", name)
            counts = ((found.get("status") or {}).get("calibration") or {}).get("profile")
            return found if counts else None

        return until("a profile is in force", look, timeout_s=CALIBRATION_S, seen=lambda: self.told(name))

    def until_decided(
        self, reason: str, action: str = "Hold", name: str = "chat", *, said: str = ""
    ) -> Manifest:
        """The service, once its decision has this reason; returns the decision.

        Args:
            reason: of it. action: the decision itself.
            name: of the service.
            said: is in the message; the same reason may have had another one before.
        """
        found = self.until_service(
            f"{action} for {reason}, {said!r}",
            lambda status: (
                (decision(status).get("action"), decision(status).get("reason")) == (action, reason)
                and said in decision(status).get("message", "")
            ),
            name,
        )
        return decision(found["status"])

    def until_settled(self, arm: str, name: str = "chat", timeout_s: float = PATIENCE_S) -> Manifest:
        """The service, once its target runs an arm and nothing of another is left."""
        return self.until_service(
            f"{arm} runs and no roll is under way",
            lambda status: (
                (status.get("current") or {}).get("podsByArm") == [{"arm": arm, "pods": 1}]
                and (status.get("rollout") or {}).get("phase", "Confirming") == "Confirming"
            ),
            name,
            timeout_s,
        )

    def told(self, name: str) -> str:
        """The status in words, which a failure's text includes."""
        status = self.get("specsvc", name).get("status") or {}
        conditions = [
            (c["type"], c["status"], c["reason"], c["message"]) for c in status.get("conditions", ())
        ]
        kept = {key: status.get(key) for key in ("decision", "current", "rollout", "calibration", "workings")}
        worries = [line for line in self.stage.log() if line["level"] not in {"info", "debug"}][-5:]
        return json.dumps({**kept, "conditions": conditions, "operator": worries}, indent=1)

    def reasons(self) -> dict[str, str]:
        """Notes of the events here, by reason; what is absent here may still be on its way."""
        return {event["reason"]: event["note"] for event in self.all("event")}

    def until_event(self, reason: str) -> str:
        """The note of the event with that reason, once it is there: the operator posts it after the status."""
        return until(f"an event says {reason}", lambda: self.reasons().get(reason), seen=self.reasons)

    @contextlib.contextmanager
    def frozen(self, said: str) -> Iterator[None]:
        """While the block lasts, a ValidatingAdmissionPolicy lets the operator change no Deployment here.

        The target is there before: the API server enforces a policy a while after it was made, and is asked until it does.
        """
        name, path = f"freeze-{self.name}", "/apis/admissionregistration.k8s.io/v1"
        rule = {
            "apiGroups": ["apps"],
            "apiVersions": ["v1"],
            "operations": ["UPDATE"],
            "resources": ["deployments"],
        }
        here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self.name}}}
        specs: dict[tuple[str, str], Manifest] = {
            ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"): {
                "failurePolicy": "Fail",
                "matchConstraints": {**here, "resourceRules": [rule]},
                "validations": [
                    {"expression": f"request.userInfo.username != '{OPERATOR}'", "message": said}
                ],
            },
            ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"): {
                "policyName": name,
                "validationActions": ["Deny"],
            },
        }
        with contextlib.ExitStack() as made:
            for (kind, plural), spec in specs.items():
                manifest = {
                    "apiVersion": "admissionregistration.k8s.io/v1",
                    "kind": kind,
                    "metadata": {"name": name},
                    "spec": spec,
                }
                self.stage.api.create(f"{path}/{plural}", manifest)
                made.callback(self.stage.api.delete, f"{path}/{plural}/{name}")
            until("the policy is enforced", lambda: said in self.refused("deployment", _ITS_ANNOTATION))
            yield

    def refused(self, kind: str, patch: Manifest, name: str = manifests.TARGET) -> str:
        """The API server's words to the operator's account; empty where it may do that. Nothing is changed."""
        done = self.stage.cluster.kubectl(
            "patch", kind, name, f"--namespace={self.name}", f"--as={OPERATOR}", "--type=merge",
            f"--patch={json.dumps(patch)}", "--dry-run=server", check=False,
        )  # fmt: skip
        return done.stderr if done.returncode else ""

    def managed(self, **changes: Any) -> None:
        """A target that serves, a service on it and an accepted profile: nothing has to be measured."""
        self.apply(
            manifests.profile(self.stage.fingerprint), manifests.target(), manifests.service(**changes)
        )


def _account(status: Manifest) -> str:
    """Why a run failed, with its points."""
    kept = (
        "arm",
        "requestRateRps",
        "concurrency",
        "meanLatencyS",
        "meanInflight",
        "achievedRps",
        "requests",
        "queuedRatio",
        "flag",
    )
    points = [{key: point[key] for key in kept if key in point} for point in status.get("points") or ()]
    lines = [f"{status.get('reason')}: {status.get('message')}", *map(str, points)]
    return "\n".join(lines)


def decision(status: Manifest) -> Manifest:
    """The decision in a service's status."""
    return status.get("decision") or {}


def condition(found: Manifest, kind: str) -> Manifest:
    """One condition of an object."""
    conditions: list[Manifest] = (found.get("status") or {}).get("conditions") or []
    return next((item for item in conditions if item["type"] == kind), {})


@contextlib.contextmanager
def standing(folder: Path, asked: Callable[[str], str] = str) -> Iterator[Stage]:
    """A cluster with its nodes, Prometheus and the operator.

    Args:
        folder: for small files.
        asked: address that the operator asks, of Prometheus' own.
    """
    images = folder / "images.yaml"
    images.write_text(
        yaml.safe_dump(
            [{"images": [SECLUDED_IMAGE], "entrypoint": ["{bin}/breakeven", "engine-sim"],
              "defaults": {"--host": "{pod_ip}"}}]
        )
    )  # fmt: skip
    costs = {"BREAKEVEN_SIM_COSTS": json.dumps(COSTS)}
    with Posers() as posers, LocalCluster() as cluster:
        cluster.start_nodes(NODES, environment=costs, extra_arguments=_CRASHES)
        cluster.start_nodes(
            [SECLUDED],
            agent="secluded",
            environment=costs,
            extra_arguments=[*_CRASHES, "--images", str(images)],
        )
        cluster.start_prometheus(scrape_interval_s=1.0, alertmanager=False, extra_scrapes=[posers.scrape()])
        cluster.helm(
            "install", "breakeven", str(CHART), f"--namespace={HOME}", "--create-namespace",
            f"--set=prometheus.address={asked(cluster.prometheus_url)}",
            # The model that services of the tests name beside it is on this machine, too.
            "--set=prometheus.allowedAddresses={127.0.0.0/8}",
            "--set=operator.cycleSeconds=1,operator.statusRefreshSeconds=1,calibration.maxParallel=4,timing.replicasQuietSeconds=12",
            # On the loopback, which the operators of all clusters share.
            f"--set=board.port={free_ports(1)[0]}",
            "--wait", "--timeout=300s",
        )  # fmt: skip
        with Administrator(cluster) as api:
            # The API server refuses a kind for a moment after it was made (429), the operator Ready or not.
            for kind in ("specsvc", "calrun", "specprof"):
                path = _PATHS[kind].format("namespaces/default")
                until(f"/{path} is served", lambda path=path: api.json(f"/{path}") is not None)  # type: ignore[misc]
            yield Stage(cluster, posers, api)
