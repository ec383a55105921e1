"""Settings are checked once, at start, with one line each."""

from __future__ import annotations

import pytest

from breakeven.errors import InputError
from breakeven.serving.promql import LabelNames
from breakeven_operator.resources.updatepolicy import PRODUCTION
from breakeven_operator.settings import read_settings


def test_defaults_are_for_production():
    settings = read_settings({})
    assert (settings.cycle_s, settings.lease_s, settings.max_parallel_calibrations) == (15.0, 30.0, 1)
    assert settings.watch_namespaces == ()
    assert settings.trial_image.startswith("ghcr.io/breakeven-dev/breakeven:")


def test_everything_can_be_set():
    settings = read_settings(
        {
            "BREAKEVEN_WATCH_NAMESPACES": "b, a,,b",
            "BREAKEVEN_CYCLE_SECONDS": "3",
            "BREAKEVEN_PORT": "9000",
            "BREAKEVEN_DRY_RUN": "true",
            "BREAKEVEN_TRIAL_PRIORITY_CLASS": "low",
        }
    )
    assert settings.watch_namespaces == ("a", "b")
    assert (settings.cycle_s, settings.port, settings.dry_run, settings.trial_priority_class) == (
        3.0,
        9000,
        "true",
        "low",
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BREAKEVEN_CYCLE_SECONDS", "soon"),
        ("BREAKEVEN_CYCLE_SECONDS", "0"),
        ("BREAKEVEN_CYCLE_SECONDS", "nan"),
        ("BREAKEVEN_PORT", "70000"),
        ("BREAKEVEN_WATCH_NAMESPACES", "a,B!"),
        ("BREAKEVEN_PROMETHEUS_ADDRESS", "prometheus:9090"),
        ("BREAKEVEN_PROMETHEUS_ADDRESS", "http://user:secret@prometheus:9090"),
        ("BREAKEVEN_PROMETHEUS_CA_FILE", "/nowhere/ca.crt"),
        ("BREAKEVEN_PROMETHEUS_LABEL_NAMES", "pod"),
        ("BREAKEVEN_PROMETHEUS_LABEL_NAMES", "engine=exported_engine"),
        ("BREAKEVEN_PROMETHEUS_LABEL_NAMES", "pod=exported-pod"),
        ("BREAKEVEN_LOG_LEVEL", "LOUD"),
        ("BREAKEVEN_TRIAL_IMAGE_PULL_POLICY", "Sometimes"),
        ("BREAKEVEN_DRY_RUN", "yes"),
        ("BREAKEVEN_CYCLE_SECOND", "15"),
        ("BREAKEVEN_WATCH_ANNOTATED", "yes"),
        ("BREAKEVEN_MOST_WATCHED", "0"),
        ("BREAKEVEN_TIMING", "soon"),
        ("BREAKEVEN_TIMING", "[]"),
        ("BREAKEVEN_TIMING", '{"backoffSeconds": -1}'),
        ("BREAKEVEN_TIMING", '{"backoff": 60}'),
        ("BREAKEVEN_DEFAULT_CANDIDATES", "ngram"),
        ("BREAKEVEN_DEFAULT_CANDIDATES", "[]"),
        ("BREAKEVEN_DEFAULT_CANDIDATES", "[" * 5000),
        ("BREAKEVEN_DEFAULT_CANDIDATES", '{"methods": []}'),
        ("BREAKEVEN_DEFAULT_CANDIDATES", '{"methods": [{"name": "e", "method": "eagle3"}]}'),
    ],
)
def test_a_wrong_setting_is_one_line_with_its_name(name, value):
    with pytest.raises(InputError) as caught:
        read_settings({name: value})
    assert str(caught.value).startswith(name)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_what_the_kubelet_adds_for_services_is_no_mistake():
    read_settings(
        {
            "BREAKEVEN_SERVICE_HOST": "10.0.0.1",
            "BREAKEVEN_METRICS_SERVICE_PORT": "8080",
            "BREAKEVEN_PORT_8080_TCP_ADDR": "10.0.0.1",
        }
    )


CANDIDATES = '{"methods": [{"name": "head", "method": "eagle3", "model": "org/head"}]}'


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "BREAKEVEN_DEFAULT_CANDIDATES: is missing; expected candidates for"),
        (
            {"BREAKEVEN_DEFAULT_CANDIDATES": CANDIDATES, "BREAKEVEN_ALLOWED_DRAFTERS": "RedHatAI/"},
            "BREAKEVEN_DEFAULT_CANDIDATES: drafter 'org/head'; expected one that begins with RedHatAI/",
        ),
    ],
)
def test_services_are_made_with_candidates_that_the_installation_allows(settings, said):
    with pytest.raises(InputError) as caught:
        read_settings({"BREAKEVEN_WATCH_ANNOTATED": "true", **settings})
    assert str(caught.value).startswith(said)


def test_candidates_are_read_as_a_service_has_them():
    settings = read_settings(
        {"BREAKEVEN_WATCH_ANNOTATED": "true", "BREAKEVEN_DEFAULT_CANDIDATES": CANDIDATES}
    )
    assert settings.default_candidates is not None
    assert [arm.name for arm in settings.default_candidates.arms()] == [
        "none",
        "head/2",
        "head/7",
        "head/adaptive",
    ]


def test_the_installation_s_prometheus_may_have_other_labels():
    named = read_settings(
        {"BREAKEVEN_PROMETHEUS_LABEL_NAMES": "pod=exported_pod,namespace=exported_namespace"}
    )
    assert named.prometheus_label_names == LabelNames("exported_namespace", "exported_pod")


def test_times_of_the_installation_are_those_of_production_unless_it_sets_them():
    assert read_settings({}).timing == PRODUCTION
    short = read_settings({"BREAKEVEN_TIMING": '{"backoffSeconds": 60}'}).timing
    assert (short.backoff_seconds, short.disagreement_seconds) == (60, PRODUCTION.disagreement_seconds)
