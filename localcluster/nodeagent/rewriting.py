"""Mount paths without mount namespaces: the command line and environment name the volume's folder instead.

Only for machines that forbid user namespaces. It covers paths in a container's command line and environment; one that a program has built in
(the ServiceAccount folder) is not covered, hence the kubeconfig that such containers get.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from localcluster.nodeagent.mounts import Bind


def rewrite(text: str, mounts: Iterable[Bind]) -> str:
    """Replaces every whole-path occurrence of a mount point by its source; the longest mount point wins."""
    places = {bind.target: bind.source for bind in mounts}
    if not places:
        return text
    longest_first = "|".join(re.escape(target) for target in sorted(places, key=len, reverse=True))
    # A path begins after something that is no path character and ends before a slash or the like: /models is not in
    # /data/models, nor in /models2.
    pattern = re.compile(rf"(?<![\w./-])(?:{longest_first})(?![\w.-])")
    return pattern.sub(lambda match: places[match[0]], text)


def kubeconfig(server: str, folder: str, namespace: str) -> str:
    """A kubeconfig that says what in-cluster configuration would: the token and CA of a ServiceAccount folder."""
    return f"""apiVersion: v1
kind: Config
current-context: pod
clusters: [{{name: pod, cluster: {{server: "{server}", certificate-authority: "{folder}/ca.crt"}}}}]
users: [{{name: pod, user: {{tokenFile: "{folder}/token"}}}}]
contexts: [{{name: pod, context: {{cluster: pod, user: pod, namespace: "{namespace}"}}}}]
"""
