"""A Kubernetes cluster on this machine: the one object that tests, the demo and the command line hold."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import yaml

from localcluster import audit, components, kubeconfig, nodes, optional_controllers, pki, prometheus_config
from localcluster.account import account
from localcluster.binaries import ensure
from localcluster.catalog import CONTROL_PLANE, MONITORING
from localcluster.control import Control, ProcessSpec, ProcessStatus
from localcluster.failure import LocalClusterError
from localcluster.free_ports import free_ports
from localcluster.launching import Launched, last_line, launch
from localcluster.plainhttp import Reader, listens
from localcluster.state import ClusterEndpoints, StateFolder

# A machine that is busy with something else takes ten times as long as an idle one; a hanging one takes for ever.
START_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.05
_AGENT_GRACE_S: Final = 10.0


class LocalCluster:
    """etcd, API server, controller manager and scheduler; nodes and monitoring when asked for.

    Everything ends with the process that started it, even when that is killed, until `detach()`.

    Args:
        state_dir: folder for everything that the cluster writes; a temporary one by default.
        keep_state: leave it behind for inspection.

    Raises:
        LocalClusterError: (every method) something did not start or answer; the text is one line.
    """

    def __init__(self, state_dir: Path | None = None, *, keep_state: bool = False) -> None:
        temporary = Path(tempfile.gettempdir()) / f"breakeven-cluster-{secrets.token_hex(4)}"
        self._state = StateFolder.at(state_dir or temporary)
        self._keep_state = keep_state
        self._control = Control(self._state.socket)
        self._launched: Launched | None = None
        self._endpoints = ClusterEndpoints("", 0, 0)
        self._programs: dict[str, Path] = {}
        self._audit = audit.AuditLog(self._state.audit_log)

    @classmethod
    def attach(cls, state_dir: Path) -> Self:
        """The cluster that runs in a folder; leaving it does not stop it."""
        cluster = cls(state_dir)
        cluster._control.status()
        cluster._endpoints = cluster._state.load()
        return cluster

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            # The last moment at which it can be asked.
            error.add_note(account(self))
        self.stop()

    @property
    def state_dir(self) -> Path:
        """The folder that holds everything of this cluster."""
        return self._state.root

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self._state.kubeconfig

    @property
    def api_url(self) -> str:
        """The API server."""
        return self._endpoints.api

    @property
    def prometheus_url(self) -> str:
        """Prometheus, or empty before `start_prometheus`."""
        return self._endpoints.prometheus

    @property
    def alertmanager_url(self) -> str:
        """Alertmanager, or empty before `start_prometheus(alertmanager=True)`."""
        return self._endpoints.alertmanager

    @property
    def environment(self) -> dict[str, str]:
        """This process's environment, with kubectl and Helm pointed at this cluster and its `bin` first on PATH."""
        path = f"{self._state.root / 'bin'}:{os.environ.get('PATH', os.defpath)}"
        return components.tool_environment(self._state, {**os.environ, "PATH": path})

    def processes(self) -> list[ProcessStatus]:
        """Every process that was started for this cluster, the ended ones included."""
        return self._control.status()

    def stop_process(self, name: str) -> None:
        """Ends one of them; the others stay. What listened on its ports then refuses connections."""
        self._control.stop(name)

    def restart_process(self, name: str) -> None:
        """Ends one of them if it still runs and starts it as it was, on the same ports with the same data."""
        self._control.restart(name)

    def audit_events(self) -> Sequence[audit.AuditEvent]:
        """All writes so far, oldest first; an answered request is always among them."""
        return self._audit.events()

    def start(self) -> None:
        """Builds what is missing, starts the control plane and returns when pods can be created."""
        programs = self._have(CONTROL_PLANE)
        lock = self._state.lock()
        if lock is None:
            raise LocalClusterError(
                f"a cluster runs in {self._state.root} already; end it first (`make cluster-down` for .local)"
            )
        try:
            # A cluster whose supervisor was killed could not clean up after itself.
            self._state.clear()
            self._state.create()
            self._audit = audit.AuditLog(self._state.audit_log)
            api_port, etcd_port, etcd_peer_port = free_ports(3)
            self._endpoints = ClusterEndpoints(f"https://127.0.0.1:{api_port}", etcd_port, etcd_peer_port)
            self._write_files(programs)
        except BaseException:
            self._state.remove()
            os.close(lock)
            raise
        self._launched = launch(self._state, lock, keep_state=self._keep_state)
        try:
            self._start_control_plane(programs)
        except BaseException:
            self.stop()
            raise

    def _write_files(self, programs: Mapping[str, Path]) -> None:
        pki.write(self._state.pki)
        kubeconfigs = {
            "admin": self._state.kubeconfig,
            "node-agent": self._state.kubeconfig_of("node-agent"),
            "controller-manager": self._state.kubeconfig_of("controller-manager"),
            "scheduler": self._state.kubeconfig_of("scheduler"),
            "prometheus": self._state.kubeconfig_of("prometheus"),
            **{name: self._state.kubeconfig_of(name) for name in optional_controllers.NAMES},
        }
        for identity, path in kubeconfigs.items():
            kubeconfig.write(path, server=self.api_url, pki=self._state.pki, identity=identity)
        (self._state.root / "audit" / "policy.yaml").write_text(components.AUDIT_POLICY)
        self._link(programs, "kubectl")
        self._state.save(self._endpoints)

    def _link(self, programs: Mapping[str, Path], name: str) -> None:
        link = self._state.root / "bin" / name
        link.unlink(missing_ok=True)
        link.symlink_to(programs[name])

    def _start_control_plane(self, programs: Mapping[str, Path]) -> None:
        state, endpoints = self._state, self._endpoints
        self._run("etcd", components.etcd(programs["etcd"], state, endpoints))
        self._run("kube-apiserver", components.api_server(programs["kube-apiserver"], state, endpoints))
        self._await("the API server", lambda: self._api().get("/readyz"))
        # Not earlier: the controller manager gives up when it finds no API server within ten seconds.
        self._run(
            "kube-controller-manager",
            components.controller_manager(programs["kube-controller-manager"], state),
        )
        self._run("kube-scheduler", components.scheduler(programs["kube-scheduler"], state))
        # Pods are refused until their namespace's ServiceAccount exists.
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        self._await("the controller manager", lambda: self._api().get(account))

    def stop(self) -> None:
        """Ends every process and removes the state folder; does nothing if that has happened."""
        try:
            self._control.shutdown()
        except LocalClusterError:
            # Nobody listens: it has stopped, or was killed, and then the kernel has killed all it had started.
            if self._launched is not None:
                self._launched.wait()
            self._remove_leftovers()
        else:
            if self._launched is not None:
                self._launched.wait()
        self._launched = None

    def _remove_leftovers(self) -> None:
        if not self._keep_state and self._state.root.exists():
            lock = self._state.lock()
            if lock is not None:
                self._state.remove()
                os.close(lock)

    def detach(self) -> None:
        """Lets the cluster outlive this process; `make cluster-down` or `attach(...).stop()` ends it."""
        self._control.detach()
        if self._launched is not None:
            self._launched.forget()
            self._launched = None

    def start_nodes(
        self,
        fleet: Sequence[nodes.GpuNode] = nodes.DEFAULT,
        *,
        agent: str = "nodeagent",
        environment: Mapping[str, str] | None = None,
        extra_arguments: Sequence[str] = (),
    ) -> None:
        """Starts a node agent and returns when its nodes are Ready.

        Args:
            fleet: the nodes it plays.
            agent: name of its process; a second agent needs another one.
            environment: variables for it (and so for its pods) besides this process's own.
            extra_arguments: more of its command line.
        """
        command = nodes.agent_command(self._state, fleet, agent=agent, extra=extra_arguments)
        surroundings = nodes.with_this_package({**os.environ, **(environment or {})})
        self._run(agent, command, environment=surroundings, grace_s=_AGENT_GRACE_S)
        for node in fleet:
            path = f"/api/v1/nodes/{node.name}"
            self._await(f"node {node.name}", lambda path=path: nodes.is_ready(self._api().json(path)))  # type: ignore[misc]

    def start_prometheus(
        self,
        rule_files: Sequence[Path] = (),
        *,
        alertmanager: bool = True,
        scrape_interval_s: float = 5.0,
        lookback_s: float = 300.0,
        extra_scrapes: Sequence[Mapping[str, Any]] = (),
        past: str = "",
    ) -> None:
        """Starts Prometheus (and Alertmanager) and returns when it answers queries.

        Args:
            rule_files: rule files or PrometheusRule manifests.
            alertmanager: whether alerts have somewhere to go.
            scrape_interval_s: also the interval at which rules are evaluated.
            lookback_s: how old a sample an instant query still takes; Prometheus' own default.
            extra_scrapes: entries of `scrape_configs` besides the annotated pods.
            past: samples with times that it holds from the start, as promtool makes blocks of them; empty: none.
        """
        programs = self._have(MONITORING)
        port, alertmanager_port = free_ports(2)
        self._endpoints = replace(
            self._endpoints,
            prometheus=f"http://127.0.0.1:{port}",
            alertmanager=f"http://127.0.0.1:{alertmanager_port}" if alertmanager else "",
        )
        for document in prometheus_config.read_only_access():
            self.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump(document))
        for name in ("prometheus", "alertmanager"):
            (self._state.root / name).mkdir(exist_ok=True)
        configuration = prometheus_config.configuration(
            kubeconfig=self._state.kubeconfig_of("prometheus"),
            scrape_interval_s=scrape_interval_s,
            rule_files=[self._rules_folder / "*.yaml"],
            alertmanager=self.alertmanager_url,
            extra_scrapes=extra_scrapes,
        )
        (self._state.root / "prometheus" / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
        self._write_rules(rule_files)
        if alertmanager:
            document = prometheus_config.alertmanager_configuration()
            (self._state.root / "alertmanager" / "alertmanager.yaml").write_text(yaml.safe_dump(document))
            url = self.alertmanager_url
            self._run(
                "alertmanager",
                prometheus_config.alertmanager_command(programs["alertmanager"], self._state, url),
            )
            self._await("Alertmanager", lambda: Reader(url).get("/-/ready"))
        if past:
            self._keep_past(past)
        command = prometheus_config.prometheus_command(
            programs["prometheus"], self._state, self.prometheus_url, lookback_s=lookback_s
        )
        self._run("prometheus", command)
        self._await("Prometheus", lambda: Reader(self.prometheus_url).get("/-/ready"))
        self._state.save(self._endpoints)

    def _keep_past(self, samples: str) -> None:
        folder = self._state.root / "prometheus"
        (folder / "past.txt").write_text(samples)
        self.promtool(
            "tsdb", "create-blocks-from", "openmetrics", str(folder / "past.txt"), str(folder / "data")
        )

    def start_controller(self, name: str) -> None:
        """Starts the controller of kinds that not every cluster has, with their definitions; returns when it takes objects.

        Args:
            name: one of `optional_controllers.NAMES`; nothing is done if it runs.
        """
        if any(one.name == name and one.returncode is None for one in self.processes()):
            return
        program = self._have([name])[name]
        webhook_port, health_port = free_ports(2)
        starting = optional_controllers.starting(name, program, self._state, webhook_port, health_port)
        self._apply(starting.before)
        self.until_established(*starting.kinds)
        self._run(name, starting.command, environment={**os.environ, **starting.environment})
        self._await(name, lambda: Reader(f"http://127.0.0.1:{health_port}").get(starting.ready_path))
        self._await(f"the port of {name}", lambda: listens(webhook_port))
        self._apply(starting.after)

    def _apply(self, documents: Sequence[Mapping[str, Any]]) -> None:
        """Server-side apply, in this order. As YAML the megabytes of a controller's definitions take ten times as long."""
        if documents:
            together = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
            self.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(together))

    @property
    def _rules_folder(self) -> Path:
        return self._state.root / "prometheus" / "rules"

    def load_rules(self, rule_files: Sequence[Path]) -> None:
        """Replaces the rules of a running Prometheus; returns when the new ones are in force."""
        wanted = {str(path) for path in self._write_rules(rule_files)}
        self._control.signal("prometheus", "SIGHUP")
        reader = Reader(self.prometheus_url)

        def in_force() -> bool:
            answer = reader.json("/api/v1/rules")
            return answer is not None and {group["file"] for group in answer["data"]["groups"]} == wanted

        self._await("Prometheus' new rules", in_force)

    def _write_rules(self, rule_files: Sequence[Path]) -> list[Path]:
        written = prometheus_config.write_rules(self._rules_folder, rule_files)
        if written:
            self.promtool("check", "rules", *map(str, written))
        return written

    def kubectl(
        self, *arguments: str, stdin: str = "", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Runs kubectl as administrator; a failure raises its last line unless `check` is off."""
        return self._tool("kubectl", arguments, stdin=stdin, check=check)

    def until_established(self, *names: str) -> None:
        """Returns when the API server takes objects of some kinds; of all whose definitions it has if none is named.

        `kubectl wait` fails on a definition that has no status yet.

        Args:
            names: of the definitions, such as `clonesets.apps.kruise.io`.
        """

        def established() -> bool:
            found = json.loads(self.kubectl("get", "crd", *names, "--output=json").stdout)
            listed = found.get("items", [found])
            return bool(listed) and all(
                any(
                    (one["type"], one["status"]) == ("Established", "True")
                    for one in definition.get("status", {}).get("conditions") or ()
                )
                for definition in listed
            )

        self._await(f"definitions {', '.join(names)}".rstrip(), established)

    def helm(
        self, *arguments: str, check: bool = True, program: str = "helm"
    ) -> subprocess.CompletedProcess[str]:
        """Runs Helm (3, or as `helm4`) as administrator; a failure raises its last line unless `check` is off."""
        return self._tool(program, arguments, check=check)

    def promtool(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs promtool; a failure raises its last line unless `check` is off."""
        return self._tool("promtool", arguments, check=check)

    def _tool(
        self, name: str, arguments: Sequence[str], *, stdin: str = "", check: bool
    ) -> subprocess.CompletedProcess[str]:
        program = self._have([name])[name]
        done = subprocess.run(
            [program, *arguments],
            input=stdin,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode != 0:
            complaint = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
            raise LocalClusterError(f"{name} {' '.join(arguments)}: exit {done.returncode}: {complaint}")
        return done

    def _have(self, names: Sequence[str]) -> Mapping[str, Path]:
        """Paths of programs, found or built at their first use by this cluster and the same ever after."""
        self._programs |= ensure([name for name in names if name not in self._programs])
        return self._programs

    def _run(
        self,
        name: str,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        grace_s: float = 0.0,
    ) -> None:
        # Without grace: what these would save in an orderly stop is deleted a moment later.
        env = dict(os.environ if environment is None else environment)
        self._control.start(ProcessSpec(name, list(argv), env, str(self._state.log(name)), grace_s))

    def _api(self) -> Reader:
        return Reader(self.api_url, self._state.pki)

    def _await(self, what: str, condition: Callable[[], object]) -> None:
        """Returns when the condition holds; raises as soon as a process of the cluster has ended instead."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not condition():
            for process in self._control.status():
                if process.returncode is not None and not process.stopped:
                    said = last_line(self._state.log(process.name))
                    raise LocalClusterError(f"{process.name} ended with {process.returncode}: {said}")
            if time.monotonic() > deadline:
                raise LocalClusterError(
                    f"{what} is not ready after {START_TIMEOUT_S:.0f} s; see {self._state.log('')}"
                )
            time.sleep(_POLL_S)
