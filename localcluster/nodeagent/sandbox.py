"""Turns a container of a pod into something to execute: environment, command line, root file system, GPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from localcluster.nodeagent import environment, gpus, images, mounts, rewriting, rootfiles, variables
from localcluster.nodeagent.environment import ConfigError, Lookup
from localcluster.nodeagent.fieldrefs import Placement
from localcluster.nodeagent.images import ImageProgram, Preload
from localcluster.nodeagent.isolation import Isolation, container_root
from localcluster.nodeagent.mounts import Bind, VolumeFolder
from localcluster.nodeagent.podspec import ContainerSpec, PodSpec
from localcluster.nodeagent.preloading import ForkServers
from localcluster.nodeagent.processes import Launch

SERVICE_ACCOUNT = (
    "/var/run/secrets/kubernetes.io/serviceaccount"  # where client libraries look; not a secret itself
)
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class UnknownImageError(Exception):
    """The image table has no entry for the image."""


@dataclass(frozen=True)
class Machine:
    """Parts that all containers of a node have in common."""

    images: tuple[ImageProgram, ...]
    isolation: Isolation
    root_folder: Path
    api_host: str
    api_port: int
    gpu_product: str
    fork_servers: ForkServers

    def services(self) -> dict[str, str]:
        """The variables a kubelet adds for the API server. Other Services have no reachable address here, so none."""
        host, port = self.api_host, str(self.api_port)
        return {
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
            "KUBERNETES_SERVICE_PORT_HTTPS": port,
            "KUBERNETES_PORT": f"tcp://{host}:{port}",
        }


@dataclass(frozen=True)
class Rooms:
    """A pod's folders on this machine."""

    folder: Path
    volumes: Mapping[str, VolumeFolder]

    def of(self, container: str) -> Path:
        """The folder of one container: logs, home, termination message."""
        return self.folder / "containers" / container


class SeenUser(NamedTuple):
    """Ids of a user and its group."""

    user: int
    group: int


def identity(pod: PodSpec, container: ContainerSpec, program: ImageProgram) -> SeenUser:
    """The user that the container sees itself as; outside it is always the agent's user.

    Raises:
        ConfigError: runAsNonRoot forbids what would be root.
    """
    security = {
        **(pod.raw["spec"].get("securityContext") or {}),
        **{k: v for k, v in (container.raw.get("securityContext") or {}).items() if v is not None},
    }
    user = int(security.get("runAsUser", program.user))
    group = int(security.get("runAsGroup", program.user if "runAsUser" not in security else 0))
    if security.get("runAsNonRoot") and user == 0:
        raise ConfigError("container has runAsNonRoot and image will run as root")
    return SeenUser(user, group)


async def prepare(
    pod: PodSpec,
    container: ContainerSpec,
    where: Placement,
    machine: Machine,
    rooms: Rooms,
    lookup: Lookup,
    gpu_indexes: Sequence[int],
) -> Launch:
    """The command to execute for a container, with its folders made.

    Raises:
        UnknownImageError: no program stands for the image.
        ConfigError: the pod names something that does not exist, or gives no command to an image without one.
    """
    program = images.find(container.image, machine.images)
    if program is None:
        raise UnknownImageError(container.image)
    user, group = identity(pod, container, program)
    room = rooms.of(container.name)
    home_here = rootfiles.home_folder(room)
    home = rootfiles.HOME if machine.isolation.allowed else str(home_here)
    own = await environment.assemble(pod, container, where, machine.services(), lookup)
    env = {
        **_image_env(pod, program, where),
        **_shims(program, home_here, home),
        **_gpu_env(container, machine, gpu_indexes),
        **own,
    }
    env.setdefault("HOME", home)
    argv = program.command_line(
        variables.expand_all(container.raw.get("command", []), own),
        variables.expand_all(container.raw.get("args", []), own),
        where.pod_ip,
    )
    if not argv:
        raise ConfigError(f"no command: image {container.image} has no program of its own here")
    binds = list(mounts.binds(container, rooms.volumes, own))
    cwd = container.raw.get("workingDir") or home
    if not machine.isolation.allowed:
        if program.root is not None:
            raise ConfigError(
                f"image {container.image} has a root file system of its own, which needs user namespaces"
            )
        launch = _rewritten(pod, machine, argv, env, cwd, binds, rooms)
        return replace(launch, preload=_preload(program, launch))
    binds += rootfiles.runtime_binds(pod, container, where, room, cwd, binds, program.root)
    root = container_root(
        machine.root_folder,
        binds,
        program.root,
        read_only=rootfiles.has_read_only_root(container),
        uid=user,
        gid=group,
        hostname=rootfiles.hostname(pod),
    )
    launch = Launch(argv, env, cwd, root=root)
    return replace(launch, preload=_preload(program, launch))


def _preload(program: ImageProgram, launch: Launch) -> Preload | None:
    """The imports with which a fork is the same as the command; None: it must be executed."""
    preload = program.preload
    return preload if preload is not None and preload.serves(launch.argv, launch.env) else None


def _image_env(pod: PodSpec, program: ImageProgram, where: Placement) -> dict[str, str]:
    env = {"HOSTNAME": rootfiles.hostname(pod), "PATH": _path(), **_simulation_env(), **program.env}
    return env | ({"BREAKEVEN_POD_IP": where.pod_ip} if program.aliases else {})


def _path(*before: str) -> str:
    return ":".join([*before, images.bin_folder(), _SYSTEM_PATH])


def _shims(program: ImageProgram, home_here: Path, home: str) -> dict[str, str]:
    """Puts the image's programs for shells into the container's home; the PATH that finds them."""
    scripts = program.shims()
    if not scripts:
        return {}
    folder = home_here / "bin"
    folder.mkdir(exist_ok=True)
    for name, script in scripts.items():
        (folder / name).write_text(script, encoding="utf-8")
        (folder / name).chmod(0o755)
    return {"PATH": _path(f"{home}/bin")}


def _simulation_env() -> dict[str, str]:
    """The agent's own variables about the hardware it simulates (BREAKEVEN_SIM_COSTS, say), which every pod gets."""
    return {name: value for name, value in os.environ.items() if name.startswith("BREAKEVEN_SIM_")}


def _gpu_env(container: ContainerSpec, machine: Machine, indexes: Sequence[int]) -> dict[str, str]:
    if not container.extended_resource(gpus.RESOURCE):
        return {"NVIDIA_VISIBLE_DEVICES": "void"}
    return {
        "NVIDIA_VISIBLE_DEVICES": ",".join(map(str, indexes)),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(len(indexes)))),
        "BREAKEVEN_SIM_GPU": machine.gpu_product,
    }


def _rewritten(
    pod: PodSpec,
    machine: Machine,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    binds: Sequence[Bind],
    rooms: Rooms,
) -> Launch:
    """The container without a root of its own: its paths name the volumes' folders."""
    env = {name: rewriting.rewrite(value, binds) for name, value in env.items()}
    account = next((bind.source for bind in binds if bind.target == SERVICE_ACCOUNT), None)
    if account and "KUBECONFIG" not in env:
        file = rooms.folder / "kubeconfig"
        server = f"https://{machine.api_host}:{machine.api_port}"
        file.write_text(rewriting.kubeconfig(server, account, pod.namespace), encoding="utf-8")
        env["KUBECONFIG"] = str(file)
    return Launch([rewriting.rewrite(word, binds) for word in argv], env, rewriting.rewrite(cwd, binds))
