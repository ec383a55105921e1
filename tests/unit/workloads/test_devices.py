"""Devices of a container: which count as one, and which make a profile another one's."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from breakeven_operator.workloads.served_engine import ServedEngine, devices_of
from fakes.fleet_world import TARGET, FleetWorld

DEPLOYMENT = FleetWorld().target
# Of the world's target.
KNOWN = "ff8b90bb3976"


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        ({"nvidia.com/gpu": 2}, 2),
        ({"amd.com/gpu": "4", "rdma/hca_shared_devices_a": 1}, 4),
        ({"nvidia.com/mig-3g.40gb": 1}, 1),
        ({"nvidia.com/mig-1g.10gb": 3, "vpc.amazonaws.com/efa": 4}, 3),
        ({"nvidia.com/gpu.shared": 1}, 1),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 50}, 1),
        ({"gpu.intel.com/xe": 1}, 1),
        ({"habana.ai/gaudi": 8}, 8),
        ({"google.com/tpu": 4}, 4),
        ({"aws.amazon.com/neuroncore": 2}, 2),
        ({"example.com/accelerator": 2, "rdma/ib": 1}, 2),
        ({"cpu": "500m", "memory": "10Gi", "hugepages-2Mi": "1Gi", "ephemeral-storage": "1Gi"}, 0),
    ],
)
def test_a_device_is_counted_whatever_its_plugin_calls_it(asked: dict[str, Any], count: int) -> None:
    assert devices_of({"resources": {"limits": asked}}).count == count
    assert devices_of({"resources": {"requests": asked, "limits": asked}}).count == count


@pytest.mark.parametrize(
    ("quantity", "count"),
    [
        ("0", 0),
        ("2.0", 2),
        ("1e0", 1),
        ("1k", 1000),
        ("1Ki", 1024),
        ("0.5", 1),
        ("many", 1),
        ("9e99", 2**31 - 1),
        ("1Ei", 2**31 - 1),
    ],
)
def test_a_number_of_devices_is_any_quantity_of_kubernetes(quantity: str, count: int) -> None:
    assert devices_of({"resources": {"limits": {"nvidia.com/gpu": quantity}}}).count == count


def test_a_claim_is_a_device_and_its_template_is_what_it_is() -> None:
    container = {"resources": {"claims": [{"name": "gpu"}, {"name": "other", "request": "half"}]}}
    pod = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "mig-7g"}]}
    found = devices_of(container, pod)
    assert (found.count, found.claims) == (2, (("mig-7g", ""), ("other", "half")))


def fingerprint(resources: dict[str, Any], template: str = "") -> str:
    copied = copy.deepcopy(TARGET["spec"]["template"])
    spec = copied["spec"]
    spec["containers"][0]["resources"] = resources
    if template:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": template}]
    identity = replace(DEPLOYMENT, engine=ServedEngine.of(copied, None)).identity
    assert identity is not None
    return identity.fingerprint


def test_another_slice_or_claim_is_another_fingerprint_and_fabric_beside_a_gpu_too() -> None:
    asked = [
        {"nvidia.com/mig-1g.10gb": 1}, {"nvidia.com/mig-7g.80gb": 1}, {"nvidia.com/gpu": 1}, {"nvidia.com/gpu": 2},
        {"nvidia.com/gpu.shared": 1}, {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}, {"habana.ai/gaudi": 1},
    ]  # fmt: skip
    claims = {"claims": [{"name": "gpu"}]}
    marks = [fingerprint({"limits": one}) for one in asked]
    marks += [fingerprint(claims, "mig-1g"), fingerprint(claims, "mig-7g")]
    assert len(set(marks)) == len(marks)


def test_a_profile_of_whole_gpus_keeps_its_fingerprint() -> None:
    """A profile names it: if it moves, every fleet is measured again."""
    assert fingerprint({"limits": {"nvidia.com/gpu": 1}}) == KNOWN
