"""A target of three replicas whose rolls are held at a first wave, and what becomes of them: the same for every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any, NamedTuple

from breakeven.serving.rolling import ROLLED
from operatorcluster import manifests
from operatorcluster.posed_pods import PosedPods
from operatorcluster.stage import Place, decision
from operatorcluster.target_engine import EAGLE

REPLICAS = 3
LAST = f"{manifests.TARGET}-{REPLICAS - 1}"
Manifest = dict[str, Any]


class HeldWave(NamedTuple):
    """A wave that stands.

    Attributes:
        before: uids of the pods before it, by name. since: when it was seen to stand.
    """

    before: dict[str, str]
    since: str


class Waved:
    """The target in a place.

    Attributes:
        place: the namespace. posed: what Prometheus sees of its pods.
    """

    def __init__(self, place: Place, posed: PosedPods, kind: str) -> None:
        self.place, self.posed = place, posed
        self._kind = kind

    def held(self) -> HeldWave:
        """Let figures decide, until the wave stands; pods below the partition run what they ran.

        Its pods get no request before `serves` is called: a wave that is judged between two looks would never be seen.
        """
        before = self.uids
        self.posed.idle.add(EAGLE)
        self.place.pin(None)
        found = self.place.until_service(
            "the first wave is held", lambda status: decision(status).get("reason") == "FirstWaveHeld"
        )
        assert self.partition == REPLICAS - 1
        assert self.owners == ["breakeven"]
        assert self.touched(before) == [LAST]
        assert "its first wave (1 of 3 pods) runs it" in self.place.until_event("FirstWaveHeld")
        return HeldWave(before, str(found["status"]["rollout"]["waveTime"]))

    def serves(self) -> None:
        """The pods of the wave get requests too, and it can be judged."""
        self.posed.idle.clear()

    @property
    def uids(self) -> dict[str, str]:
        """Of the pods, by name."""
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.place.all("pod")}

    def touched(self, before: dict[str, str]) -> list[str]:
        """Names of the pods that others have taken since."""
        return sorted(name for name, uid in self.uids.items() if before.get(name) != uid)

    @property
    def manifest(self) -> Manifest:
        """The target."""
        return self.place.get(self._kind.lower(), manifests.TARGET)

    @property
    def partition(self) -> int:
        """It holds the pods below it; the API server takes a part away whose only field is given up."""
        rolling: Manifest = reduce(
            lambda part, name: part.get(name) or {}, ROLLED[self._kind].rolls_at, self.manifest["spec"]
        )
        return int(rolling.get("partition", 0))

    def set_partition(self, partition: int) -> None:
        """Set it as a person does."""
        change: Manifest = {"partition": partition}
        for name in reversed(("spec", *ROLLED[self._kind].rolls_at)):
            change = {name: change}
        self.place.patch(self._kind.lower(), manifests.TARGET, change)

    @property
    def owners(self) -> list[str]:
        """Field managers of the partition."""
        path = [f"f:{name}" for name in ("spec", *ROLLED[self._kind].rolls_at)]
        return [
            entry["manager"]
            for entry in self.manifest["metadata"]["managedFields"]
            if "f:partition" in reduce(lambda part, name: part.get(name) or {}, path, entry["fieldsV1"])
        ]

    @property
    def writes(self) -> int:
        """The operator's writes to the target."""
        return len(self.place.writes(f"{self._kind.lower()}s"))


@contextmanager
def waved(place: Place, target: Manifest, service: Callable[..., Manifest]) -> Iterator[Waved]:
    """The target without speculation; who makes it owns the partition's default.

    Args:
        place: the namespace.
        target: of three replicas, whose pods Prometheus does not scrape.
        service: makes one on it.
    """
    policy = {"firstWave": {"pods": 1, "deadlineSeconds": 300}, "pinnedArm": "none"}
    with PosedPods(place) as posed:
        place.apply(manifests.profile(place.stage.fingerprint), target, service(updatePolicy=policy))
        place.until_runs("none", REPLICAS)
        yield Waved(place, posed, target["kind"])


def released(wave: Waved) -> None:
    """It is held while the operator is killed, measured, released, and the roll confirmed."""
    place, held = wave.place, wave.held()
    place.stage.kill_operator()
    wave.serves()
    found = place.until_service(
        "the first wave is released", lambda status: "wavePartition" not in (status.get("rollout") or {})
    )
    assert found["status"]["rollout"]["waveTime"] == held.since
    assert " is released: measured " in place.until_event("FirstWaveReleased")
    place.until_runs("eagle/3", REPLICAS)
    assert wave.touched(held.before) == sorted(held.before)
    assert (wave.partition, wave.writes) == (0, 2)
    found = place.until_service("the roll is judged", lambda status: status.get("history"))
    assert found["status"]["history"][0]["result"] == "Confirmed"


def loses(wave: Waved) -> None:
    """It is measured to lose and undone, and one pod was touched."""
    wave.posed.slow[EAGLE] = 6.0
    held = wave.held()
    wave.serves()
    found = wave.place.until_service("the roll is undone", lambda status: status.get("history"))
    entry = found["status"]["history"][0]
    assert (entry["result"], entry["reason"]) == ("Undone", "RollDisproved")
    assert float(entry["measuredSpeedupUpper"]) < 1.0
    assert wave.touched(held.before) == [LAST]
    assert (wave.partition, wave.writes) == (0, 2)
