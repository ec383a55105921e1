"""The ConfigMaps that a run reads before it starts: one run at a time, and nothing is kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import NamedTuple

from breakeven_operator.kinds import CONFIG_MAPS
from breakeven_operator.ports import ClusterError, ClusterReader, Manifest

# A single non-Latin character makes Python store a text with four bytes per character: 64 MiB at most.
LARGEST_MIB = 16


class RunFiles(NamedTuple):
    """The files that were read.

    Attributes:
        config_maps: by name, with the keys that are asked for; None if there is no such one. What the operator may not read is
            left out.
        size: bytes that were read, kept or not.
    """

    config_maps: Mapping[str, Manifest | None]
    problem: str | None
    size: int


async def read_run_files(
    cluster: ClusterReader, namespace: str, wanted: Mapping[str, Collection[str]]
) -> RunFiles:
    """Read the keys of ConfigMaps (`wanted`, by name), up to 16 MiB of them.

    Raises:
        ClusterError: the API server does not answer.
    """
    found: dict[str, Manifest | None] = {}
    size = 0
    for name in sorted(wanted):
        try:
            manifest = await cluster.get(CONFIG_MAPS, namespace, name)
        except ClusterError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            continue
        if manifest is None:
            found[name] = None
            continue
        # The other keys count by their names alone.
        data = {
            key: text if key in wanted[name] else "" for key, text in (manifest.get("data") or {}).items()
        }
        size += sum(len(text.encode(errors="replace")) for text in data.values())
        if size > LARGEST_MIB << 20:
            problem = f"its files have more than {LARGEST_MIB} MiB in all; expected fewer or smaller ones"
            return RunFiles({}, problem, size)
        found[name] = {
            "metadata": {"name": name, "namespace": namespace},
            "data": data,
            "binaryData": dict.fromkeys(manifest.get("binaryData") or {}, ""),
        }
    return RunFiles(found, None, size)
