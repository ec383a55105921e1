"""SpeculationProfiles as decisions use them: parsed once, because their spec never changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from breakeven.errors import BreakevenError, InputError
from breakeven.profile import Profile
from breakeven.profile.document import with_usable_rows
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.ports import Manifest
from breakeven_operator.reconcile.calibration_state import FailedArm, ProfileEntry
from breakeven_operator.resources import SpeculationProfile
from breakeven_operator.workloads.object_facts import parse_time


class FiledProfile(NamedTuple):
    """A profile, filed under the service that owns it."""

    service: NamespacedName
    entry: ProfileEntry


def file_profile(manifest: Manifest) -> FiledProfile:
    """Parse a SpeculationProfile, and find out whose it is."""
    entry = _entry(manifest)
    return FiledProfile(NamespacedName(manifest["metadata"]["namespace"], entry.service), entry)


def by_service(profiles: Iterable[FiledProfile]) -> dict[NamespacedName, list[ProfileEntry]]:
    """Profiles by the service that owns them."""
    found: dict[NamespacedName, list[ProfileEntry]] = defaultdict(list)
    for service, entry in profiles:
        found[service].append(entry)
    return found


def _entry(manifest: Manifest) -> ProfileEntry:
    """One that cannot be read is an entry with its problem."""
    meta = manifest["metadata"]
    where = f"SpeculationProfile {meta['namespace']}/{meta['name']}"
    try:
        parsed = SpeculationProfile.read(
            {
                key: manifest[key]
                for key in ("apiVersion", "kind", "metadata", "spec", "status")
                if key in manifest
            },
            where,
        )
    except InputError as error:
        spec = manifest.get("spec") or {}
        return ProfileEntry(
            name=meta["name"],
            uid=meta["uid"],
            service=str((spec.get("serviceRef") or {}).get("name", "")),
            fingerprint=str(spec.get("fingerprint", "")),
            gpu_product=str(spec.get("gpuProduct", "")),
            created=_creation(manifest),
            arms=frozenset(),
            profile=None,
            problem=str(error),
        )
    # An arm without a point has no law, and is listed with the reason why.
    failed = {arm.arm: arm.reason or "" for arm in parsed.spec.arms if not arm.points}
    profile, problem = None, None
    try:
        profile = with_usable_rows(Profile.from_json(parsed.spec.profile, where), where)
    except BreakevenError as error:
        problem = str(error)
    return ProfileEntry(
        name=parsed.metadata.name,
        uid=parsed.metadata.uid,
        service=parsed.spec.service_ref.name,
        fingerprint=parsed.spec.fingerprint,
        gpu_product=parsed.spec.gpu_product,
        created=parsed.spec.created_time or _creation(manifest),
        arms=frozenset(fit.arm.name for fit in profile.arms) | frozenset(failed) if profile else frozenset(),
        profile=profile,
        problem=problem,
        in_force=parsed.status.in_force,
        failed=tuple(FailedArm(*item) for item in sorted(failed.items())),
        model=parsed.spec.model,
        image=parsed.spec.image,
        drafters={arm.arm: arm.drafter for arm in parsed.spec.arms if arm.drafter},
    )


def _creation(manifest: Manifest) -> datetime:
    return parse_time(manifest["metadata"].get("creationTimestamp")) or datetime.fromtimestamp(0, UTC)
