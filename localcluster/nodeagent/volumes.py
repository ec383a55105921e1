"""A pod's volumes on this machine: folders made and filled before its containers start, and kept up to date after."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from pathlib import Path

from localcluster.nodeagent import atomicfiles, payloads
from localcluster.nodeagent.fieldrefs import Placement
from localcluster.nodeagent.mounts import VolumeFolder
from localcluster.nodeagent.objects import PodObjects
from localcluster.nodeagent.podspec import Json, PodSpec

# A kubelet refreshes mounted ConfigMaps and Secrets about once a minute. A read may be shared for half of that.
REFRESH_S = 60.0
_SHARED_AGE = 0.5


class PodVolumes:
    """The volumes of one pod."""

    def __init__(self, folder: Path, pod: PodSpec, objects: PodObjects, refresh_s: float) -> None:
        self._folder = folder
        self._volumes: list[Json] = list(pod.raw["spec"].get("volumes", []))
        self._objects = objects
        self._refresh_s = refresh_s
        self.refresh_at = 0.0

    def folders(self) -> Mapping[str, VolumeFolder]:
        """By name of the volume."""
        return {
            v["name"]: VolumeFolder(str(self._folder / v["name"]), always_read_only="emptyDir" not in v)
            for v in self._volumes
        }

    async def publish(self, pod: PodSpec, where: Placement, *, first: bool) -> None:
        """Makes or updates every volume and sets when to do it again.

        Raises:
            MissingSourceError: a ConfigMap, Secret or key that is not optional does not exist; the message names the volume.
            ApiError, aiohttp.ClientError, TimeoutError, OSError: the API server could not be asked.
        """
        self._objects.max_age_s = 0.0 if first else _SHARED_AGE * self._refresh_s
        for volume in self._volumes:
            folder = self._folder / volume["name"]
            if "emptyDir" in volume:
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(0o777)
                continue
            try:
                files = await payloads.volume_files(volume, pod, where, self._objects)
            except payloads.MissingSourceError as error:
                raise payloads.MissingSourceError(
                    f'MountVolume.SetUp failed for volume "{volume["name"]}" : {error}'
                ) from error
            await asyncio.to_thread(atomicfiles.publish, folder, files)
        # Spread, so that pods started together do not ask together.
        self.refresh_at = time.time() + self._refresh_s * random.uniform(0.8, 1.2)
