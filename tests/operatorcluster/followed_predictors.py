"""KServe's controller of InferenceServices, played in a cluster: its Deployment follows its parent (`fakes.played_kserve`).

The real one is part of KServe's whole manager, which needs Knative's libraries, Istio's kinds and webhooks of its own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import yaml

from breakeven_operator.kinds import INFERENCE_SERVICES
from fakes.played_kserve import deployment_of
from operatorcluster.beside import beside
from operatorcluster.stage import Place

_LOOK_S = 0.3


@contextlib.contextmanager
def played_predictors(place: Place) -> Iterator[None]:
    """Until the block ends, the InferenceServices of a place have the Deployments that they ask for."""

    def follow(ended: threading.Event) -> None:
        while not ended.wait(_LOOK_S):
            for parent in place.all("inferenceservice"):
                named = {
                    **parent,
                    "apiVersion": INFERENCE_SERVICES.api_version,
                    "kind": INFERENCE_SERVICES.kind,
                }
                wanted = deployment_of(named, None)
                there = place.get("deployment", wanted["metadata"]["name"]) if wanted is not None else {}
                made = deployment_of(named, there)
                if made is not None:
                    place.kubectl(
                        "apply", "--server-side", "--field-manager=manager", "--force-conflicts", "--filename=-",
                        stdin=yaml.safe_dump(made),
                    )  # fmt: skip

    with beside(follow):
        yield
