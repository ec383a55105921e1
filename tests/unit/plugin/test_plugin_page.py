"""docs/kubectl.md names every verb, and shows what they print of services that an operator in memory decided about."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
import yaml

from breakeven import __version__
from breakeven_operator.plugin.explanation import explanation
from breakeven_operator.plugin.plugin_commands import root
from breakeven_operator.plugin.service_change import manifest, pinning
from breakeven_operator.plugin.service_table import frame
from breakeven_operator.plugin.service_view import ServiceView
from breakeven_operator.plugin.wanted_arm import difference, exported, wanted_arm
from breakeven_operator.resources.speculativeservice import SpeculativeServiceSpec

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "kubectl.md").read_text(encoding="utf-8")


def shown(command):
    """The lines below a command of the page."""
    (found,) = re.findall(
        rf"^\$ kubectl breakeven {re.escape(command)}\n((?:(?!```|\$ ).*\n)*)", PAGE, re.MULTILINE
    )
    return found.rstrip("\n")


def test_the_page_names_every_verb_and_option():
    named = {
        *root.commands,
        *(
            option.opts[-1]
            for one in root.commands.values()
            for option in one.params
            if isinstance(option, click.Option)
        ),
    }
    assert [name for name in sorted(named) if not re.search(rf"`[^`]*{name}\b", PAGE)] == []


def test_status_prints_what_the_page_shows(settled):
    assert shown("status") == frame([ServiceView.of(settled.service)], (), settled.clock.now())


@pytest.mark.parametrize("verb", ["explain", "diff", "export"])
def test_the_recommendation_is_printed_as_the_page_shows(recommending, verb):
    service = ServiceView.of(recommending.service)
    wanted = wanted_arm(service, recommending.cluster.objects["deployments", "llm", "chat-vllm"], None)
    printed = {
        "explain": explanation(service, (), recommending.clock.now()),
        "diff": difference(wanted),
        "export": exported(wanted),
    }
    assert shown(f"{verb} chat") == printed[verb].rstrip("\n")


def test_a_dry_run_prints_what_the_page_shows():
    printed = yaml.safe_dump(manifest(pinning("none"), "chat", None), sort_keys=False)
    assert shown("pin chat none --dry-run=client -o yaml") == printed.rstrip("\n")


def test_the_refusal_has_the_words_of_the_rule():
    rule = next(one for one in SpeculativeServiceSpec.rules if one.message.startswith("pinnedArm"))
    assert shown("pin chat owl/9").endswith(f"Invalid value: {rule.message}")


def test_the_manifest_for_krew_is_of_this_version_and_claims_no_digest():
    found = yaml.safe_load((ROOT / "packaging" / "krew" / "breakeven.yaml").read_text(encoding="utf-8"))
    assert (found["apiVersion"], found["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert found["spec"]["version"] == f"v{__version__}"
    assert len(found["spec"]["shortDescription"]) <= 60
    for one in found["spec"]["platforms"]:
        place = one["selector"]["matchLabels"]
        assert one["uri"].endswith(f"v{__version__}_{place['os']}_{place['arch']}.tar.gz")
        assert one["sha256"] == f"RELEASE_SHA256_{place['os']}_{place['arch']}".upper()
        assert one["bin"] in {file["from"] for file in one["files"]}
