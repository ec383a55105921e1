"""`breakeven savings` on a real Prometheus that holds known pasts: restarts of the operator, evictions, gaps, two operators, a control."""

from __future__ import annotations

import csv
import io
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from breakeven.cli import root
from breakeven.past.receipts import Unclaimed, added, receipts
from fakes.known_savings import KnownPast, as_openmetrics, known_past
from golden.documents import unexplained
from operatorcluster.made_up_prometheus import prometheus_of

# Product files whose change runs these tests at the next landing.
COVERS = ("tuner/breakeven/past/receipts.py", "tuner/breakeven/past/receipt_reading.py")

DAYS, EACH = 2, 3
END_S = 1_795_996_800
"""The thirtieth of November 2026."""
OF_THE_PAGE = {
    "chat": (KnownPast.RESTARTS, 5, END_S, DAYS),
    "code": (KnownPast.CONTROL, 2, END_S, DAYS),
}
PAGE = Path(__file__).parents[2] / "docs" / "receipts.md"


@pytest.fixture(scope="module")
def pasts():
    return {
        name: known_past(kind, seed, END_S, DAYS, name)
        for kind in KnownPast
        for seed in range(EACH)
        for name in [f"{kind.replace(' ', '-')}-{seed}"]
    }


@pytest.fixture(scope="module")
def address(pasts, tmp_path_factory):
    every = [*pasts.values(), *(known_past(*one, name) for name, one in OF_THE_PAGE.items())]
    with prometheus_of(tmp_path_factory.mktemp("savings"), as_openmetrics(every)) as found:
        yield found


def savings(address, monkeypatch, *words):
    monkeypatch.setattr(time, "time", lambda: float(END_S))
    command = ["savings", "--prometheus", address, "--since", f"{DAYS}d", *words]
    done = CliRunner().invoke(root, command, catch_exceptions=False)
    return done.stdout


@pytest.mark.always
@pytest.mark.claim("README.md", "claim nothing else.")
def test_what_is_booked_is_true_and_what_cannot_be_claimed_is_named(address, monkeypatch, pasts):
    document = json.loads(savings(address, monkeypatch, "--json"))
    assert unexplained("savings", document) == set()
    found = document["receipts"]
    assert {one["service"] for one in found} == {*pasts, *OF_THE_PAGE}
    inside = 0
    for name, known in pasts.items():
        (core,) = added(replace(one, month="all") for one in receipts(known.on_grid(), known.grid))
        own = [one for one in found if one["service"] == name]
        total = {
            key: sum(one[key] or 0.0 for one in own)
            for key in ("request_saved_s", "claimed_hours", "calibration_gpu_hours")
        }
        lower, upper = (sum((one["request_saved_s_ci"] or (0.0, 0.0))[end] for one in own) for end in (0, 1))
        assert total["claimed_hours"] == pytest.approx(known.claimable_hours), name
        assert total["request_saved_s"] == pytest.approx(core.request_saved_s.value, rel=1e-6), name
        assert total["calibration_gpu_hours"] == pytest.approx(known.spent_gpu_hours, abs=1e-6), name
        assert lower <= known.upper_s
        inside += lower <= known.truth_s <= upper
        words = {word for one in own for word in one["unclaimed_hours"]}
        assert Unclaimed.NO_EXPERIMENT in words or known.claimable_hours == 0.0
        assert (Unclaimed.OPERATOR_SILENT in words) == name.startswith(("restarts", "gaps", "all"))
        assert (Unclaimed.TWO_OPERATORS in words) >= name.startswith("two-operators")
    assert inside >= 0.9 * len(pasts)


def test_csv_and_table_show_the_same_services(address, monkeypatch, pasts):
    rows = list(
        csv.DictReader(io.StringIO(savings(address, monkeypatch, "-o", "csv", "--price-per-gpu-hour", "2")))
    )
    assert {row["ResourceName"] for row in rows} == {*pasts, *OF_THE_PAGE}
    table = savings(address, monkeypatch, "--service", "quiet-0")
    assert "llm/quiet-0" in table
    assert "llm/quiet-1" not in table


@pytest.mark.parametrize("name", OF_THE_PAGE)
def test_the_page_shows_what_the_command_prints(name, address, monkeypatch):
    words = ["--price-per-gpu-hour", "2.5", "--currency", "EUR", "--service", name]
    head, row, *_ = savings(address, monkeypatch, *words).splitlines()
    page = [" ".join(line.split()) for line in PAGE.read_text(encoding="utf-8").splitlines()]
    assert " ".join(head.split()) in page
    assert " ".join(row.split()) in page


def test_a_prometheus_that_scrapes_no_operator_is_named(address):
    done = CliRunner().invoke(root, ["savings", "--prometheus", address, "--namespace", "elsewhere"])
    assert 'service_info{specsvc_namespace="elsewhere"}; expected a Prometheus that scrapes' in str(
        done.exception
    )
