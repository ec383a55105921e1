"""A roll there and one back under load, with the operator killed in the middle, and one that is undone: the same for every kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

from demo.traffic import RequestOutcome
from localcluster import GpuNode
from operatorcluster.manifests import Manifest
from operatorcluster.stage import Place, Stage
from operatorcluster.target_engine import A100, COSTS
from operatorcluster.users import users
from operatorcluster.waiting import until

RPS = 2.0
_TROUBLED = "breakeven.dev/troubled"


class ThereAndBack(NamedTuple):
    """The requests of users.

    Attributes:
        asked: number of their requests. lost: those that failed.
    """

    asked: int
    lost: list[RequestOutcome]


def there_and_back(place: Place, replicas: int, look: Callable[[], object] = lambda: None) -> ThereAndBack:
    """Roll a target that runs `none` to an arm and back; the operator's process is killed while the first roll goes on.

    Args:
        place: the namespace.
        replicas: of the target.
        look: is called once the arm runs and before it is left.
    """
    with users(place, RPS) as outcomes:
        until("users are served", lambda: len(outcomes) > 5)
        place.pin("eagle/3")
        place.stage.kill_operator(during=place.is_rolling)
        place.until_runs("eagle/3", replicas)
        look()
        seen = len(outcomes)
        until("the new pods serve users", lambda: len(outcomes) > seen + 5)
        place.pin("none")
        place.until_runs("none", replicas)
    return ThereAndBack(len(outcomes), [outcome for outcome in outcomes if outcome.error is not None])


def undone(place: Place, replicas: int) -> ThereAndBack:
    """Roll a target on a troubled node that runs `none` to an arm that does not start there, until the roll is undone."""
    with users(place, RPS) as outcomes:
        until("users are served", lambda: len(outcomes) > 5)
        place.pin("eagle/3")
        assert place.until_event("RolledBack")
        place.until_runs("none", replicas)
    return ThereAndBack(len(outcomes), [outcome for outcome in outcomes if outcome.error is not None])


def start_troubled(stage: Stage, word: str) -> str:
    """A node whose engines cannot serve the arm: they end as vLLM does on such a configuration.

    Args:
        stage: the cluster.
        word: that pods must tolerate.

    Returns:
        Its name.
    """
    node = GpuNode(f"a100-{word}", A100, 4)
    costs = {"BREAKEVEN_SIM_COSTS": json.dumps({**COSTS, "methods": {}})}
    stage.cluster.start_nodes([node], agent=node.name, environment=costs)
    stage.cluster.kubectl("taint", "node", node.name, f"{_TROUBLED}={word}:NoSchedule")
    return node.name


def put_on_troubled(pod_spec: Manifest, word: str) -> None:
    """Let pods run on that node alone."""
    pod_spec["nodeSelector"]["kubernetes.io/hostname"] = f"a100-{word}"
    pod_spec["tolerations"] = [{"key": _TROUBLED, "value": word, "effect": "NoSchedule"}]
