"""Receipts of made-up series: each word for hours without a claim, and the forms in which receipts are read."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from breakeven.cli import root
from breakeven.errors import BreakevenError
from breakeven.estimate import Estimate
from breakeven.past.courses import TimeGrid
from breakeven.past.receipt_reading import answered, reading
from breakeven.past.receipt_table import document, focus_csv, notes, of_document, table
from breakeven.past.receipts import MEANINGS, Receipt, ServiceKey, Unclaimed, added, receipts
from breakeven.readers.prometheus import Samples, TimedValue
from fakes.known_savings import KnownPast, known_past

POINTS = Path(__file__).parents[3] / "examples" / "points.csv"
GRID = TimeGrid(1_796_083_200, 300, 13)
"""An hour of 1 December 2026."""
HOURS = (GRID.last_s - GRID.first_s) / 3600
ROLLED_S = GRID.first_s - 7200
PAIR = {"from_arm": "none", "to_arm": "eagle/3"}
FIGURES: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {
    ("stale", ()): 0.0,
    ("rollout_in_progress", ()): 0.0,
    ("current_arm_info", (("arm", "eagle/3"),)): 1.0,
    ("inflight_requests", ()): 4.0,
    ("load_requests_per_second", ()): 3.0,
    ("ready_replicas", ()): 2.0,
    ("pod_gpus", ()): 2.0,
    ("roll_timestamp_seconds", tuple(PAIR.items())): float(ROLLED_S),
    ("roll_load_requests_per_second", tuple(PAIR.items())): 3.0,
    **{
        ("roll_speedup", (*PAIR.items(), ("figure", "measured"), ("bound", bound))): value
        for bound, value in (("estimate", 1.5), ("lower", 1.4), ("upper", 1.6))
    },
    ("roll_speedup", (*PAIR.items(), ("figure", "promised"), ("bound", "estimate"))): 1.6,
    ("speedup_ratio", (("arm", "eagle/3"), ("bound", "estimate"))): 1.6,
}


LAW = ("speedup_ratio", (("arm", "eagle/3"), ("bound", "estimate")))


def series(figures=FIGURES, pod="op-1", **labels):
    """Each figure at every time of the grid, with evidence of then."""
    own = {"specsvc_namespace": "llm", "specsvc": "chat", "namespace": "breakeven", "pod": pod, **labels}
    times = [GRID.first_s + place * GRID.step_s for place in range(GRID.times)]
    found = [
        Samples(
            {"__name__": f"breakeven_{metric}", **own, **dict(more)},
            tuple(TimedValue(at, value) for at in times),
        )
        for (metric, more), value in figures.items()
    ]
    evidence = {"__name__": "breakeven_evidence_timestamp_seconds", **own}
    return [*found, Samples(evidence, tuple(TimedValue(at, at - 20.0) for at in times))]


def test_requests_in_flight_times_the_measured_speedup_less_one():
    (one,) = receipts(series(), GRID)
    assert (one.service, one.month, one.against) == (ServiceKey("", "llm", "chat"), "2026-12", ("none",))
    assert (one.claimed_hours, one.unclaimed_hours) == (pytest.approx(HOURS), {})
    saved = one.request_saved_s
    assert (saved.value, saved.lower, saved.upper) == pytest.approx(
        (8 * 3600 * 0.5, 8 * 3600 * 0.4, 8 * 3600 * 0.6)
    )
    assert one.gpu_hours_saved == Estimate(0.0, 0.0, 0.0)


def test_bounds_widen_by_as_much_as_the_load_has_moved():
    moved = FIGURES | {("load_requests_per_second", ()): 3.6}
    (one,) = receipts(series(moved), GRID)
    saved = one.request_saved_s
    assert (saved.value, saved.lower, saved.upper) == pytest.approx(
        (8 * 3600 * 0.5, 8 * 3600 * (1.4 / 1.2 - 1.0), 8 * 3600 * (1.6 * 1.2 - 1.0))
    )


@pytest.mark.parametrize(
    ("word", "changed"),
    [
        (Unclaimed.EVIDENCE_STALE, {("stale", ()): 1.0}),
        (Unclaimed.EVIDENCE_STALE, {("doubt", (("reason", "AcceptanceDrifted"),)): 1.0}),
        (Unclaimed.EVIDENCE_STALE, {("roll_timestamp_seconds", tuple(PAIR.items())): ROLLED_S - 31 * 86_400.0}),
        (Unclaimed.EVIDENCE_STALE, {("roll_timestamp_seconds", tuple(PAIR.items())): GRID.last_s + 61.0}),
        (Unclaimed.ROLL_UNDER_WAY, {("rollout_in_progress", ()): 1.0}),
        (Unclaimed.LOAD_UNKNOWN, {("inflight_requests", ()): float("nan")}),
        (Unclaimed.LOAD_UNKNOWN, {("inflight_requests", ()): -4.0}),
        (Unclaimed.LOAD_UNKNOWN, {("ready_replicas", ()): 1e300}),
        (Unclaimed.EVIDENCE_STALE, {("stale", ()): float("nan")}),
        (Unclaimed.EVIDENCE_STALE, {("rollout_in_progress", ()): float("nan")}),
        (Unclaimed.LOAD_UNKNOWN, {("current_arm_info", (("arm", "none"),)): 1.0}),
        (Unclaimed.OTHER_LOAD, {("load_requests_per_second", ()): 4.6}),
        (Unclaimed.OTHER_LOAD, {("load_requests_per_second", ()): 1.9}),
        (Unclaimed.OTHER_LOAD, {LAW: 1.6 / 1.6}),
        (Unclaimed.OTHER_LOAD, {LAW: 0.0}),
    ],
)  # fmt: skip
def test_hours_without_a_claim_have_a_word(word, changed):
    (one,) = receipts(series(FIGURES | changed), GRID)
    assert (one.claimed_hours, one.unclaimed_hours) == (0.0, {word: pytest.approx(HOURS)})
    assert one.request_saved_s == one.gpu_hours_saved == Estimate()
    assert word in MEANINGS


def test_evidence_that_is_dated_ahead_of_its_sample_claims_nothing():
    *figures, evidence = series()
    ahead = replace(
        evidence, values=tuple(TimedValue(one.time_s, one.time_s + 61.0) for one in evidence.values)
    )
    (one,) = receipts([*figures, ahead], GRID)
    assert one.unclaimed_hours == {Unclaimed.LOAD_UNKNOWN: pytest.approx(HOURS)}


def test_a_gain_that_shrinks_by_the_law_is_claimed_smaller_and_one_that_grows_is_not_claimed():
    (smaller,) = receipts(series(FIGURES | {LAW: 1.28}), GRID)
    saved = smaller.request_saved_s
    assert (saved.value, saved.lower, saved.upper) == pytest.approx(
        (8 * 3600 * (1.5 * 0.8 - 1.0), 8 * 3600 * (1.4 * 0.8 - 1.0), 8 * 3600 * (1.6 / 0.8 - 1.0))
    )
    (larger,) = receipts(series(FIGURES | {LAW: 2.0}), GRID)
    assert larger.request_saved_s.value == pytest.approx(8 * 3600 * 0.5)


def test_a_roll_to_no_speculation_is_moved_by_the_law_the_other_way():
    turned = {
        (metric, tuple((name, {"none": "eagle/3", "eagle/3": "none"}.get(value, value)) for name, value in more)): value
        for (metric, more), value in FIGURES.items()
        if metric != "speedup_ratio"
    }  # fmt: skip
    (one,) = receipts(series(turned | {LAW: 1.0 / 1.28}), GRID)
    assert one.request_saved_s.value == pytest.approx(8 * 3600 * (1.5 * 0.8 - 1.0))


def test_after_an_upgrade_nothing_is_claimed_until_a_profile_is_of_the_new_engine():
    upgraded = {key: value for key, value in FIGURES.items() if key[0] != "speedup_ratio"}
    (one,) = receipts(series(upgraded), GRID)
    assert one.unclaimed_hours == {Unclaimed.EVIDENCE_STALE: pytest.approx(HOURS)}


def test_near_saturation_hardly_more_is_booked_than_is_true():
    booked = truth = 0.0
    for seed in range(15):
        known = known_past(KnownPast.SATURATION, seed, GRID.first_s)
        for one in receipts(known.on_grid(), known.grid):
            booked += one.request_saved_s.value or 0.0
        truth += known.truth_s
    assert booked <= 1.15 * truth


def test_another_arm_and_no_experiment():
    other = {key: value for key, value in FIGURES.items() if key[0] != "current_arm_info"}
    other[("current_arm_info", (("arm", "eagle/5"),))] = 1.0
    assert [*receipts(series(other), GRID)[0].unclaimed_hours] == [Unclaimed.OTHER_ARM]
    none = {key: value for key, value in FIGURES.items() if not key[0].startswith("roll_")}
    assert [*receipts(series(none), GRID)[0].unclaimed_hours] == [Unclaimed.NO_EXPERIMENT]


def test_a_control_measures_now_at_any_load_and_needs_no_roll():
    control = {
        ("control_speedup_ratio", (("arm", "eagle/3"), ("against", "none"), ("bound", bound))): value
        for bound, value in (("estimate", 0.9), ("lower", 0.8), ("upper", 1.1))
    }
    none = {key: value for key, value in FIGURES.items() if not key[0].startswith("roll_")}
    (one,) = receipts(series(none | control), GRID)
    assert one.request_saved_s.value == pytest.approx(8 * 3600 * -0.1)
    (newer,) = receipts(series(FIGURES | control | {("load_requests_per_second", ()): 9.0}), GRID)
    assert newer.request_saved_s == one.request_saved_s


def test_two_operators_claim_nothing_and_one_that_two_servers_scraped_claims_once():
    found = receipts([*series(), *series(pod="op-2")], GRID)
    assert [one.unclaimed_hours for one in found] == [{Unclaimed.TWO_OPERATORS: pytest.approx(HOURS)}]
    twice = receipts([*series(prometheus_replica="a"), *series(prometheus_replica="b")], GRID)
    assert twice == receipts(series(), GRID)


def test_services_of_two_clusters_are_two():
    found = receipts([*series(cluster="a"), *series(cluster="b")], GRID)
    assert [one.service.cluster for one in found] == ["a", "b"]
    assert found[0].request_saved_s == receipts(series(), GRID)[0].request_saved_s


@pytest.mark.parametrize(
    ("before", "ready", "gpus"),
    [
        # Five are needed without speculation and three with it.
        (5.0, 3.0, 4.0),
        (5.0, 4.0, 2.0),
        (4.0, 3.0, 2.0),
        # Nobody removed one, or there were never more.
        (5.0, 5.0, 0.0),
        (3.0, 3.0, 0.0),
    ],
)
def test_gpu_hours_count_replicas_that_were_removed_and_would_be_needed(before, ready, gpus):
    capacity = {
        ("capacity_requests_per_second", (("arm", "none"), ("bound", bound))): value
        for bound, value in (("estimate", 3.0), ("lower", 3.0), ("upper", 3.0))
    }
    spared = {
        ("gpus_not_needed", (("arm", "eagle/3"), ("basis", "Running"), ("bound", bound))): 4.0
        for bound in ("estimate", "lower", "upper")
    }
    load = 12.5 / ready
    figures = FIGURES | capacity | spared | {
        ("ready_replicas", ()): ready, ("load_requests_per_second", ()): load,
        ("roll_load_requests_per_second", tuple(PAIR.items())): load,
    }  # fmt: skip
    own = {"specsvc_namespace": "llm", "specsvc": "chat", "namespace": "breakeven", "pod": "op-0"}
    replicas, rolling = (
        Samples({"__name__": f"breakeven_{name}", **own}, (TimedValue(ROLLED_S - 600.0, value),))
        for name, value in (("ready_replicas", before), ("rollout_in_progress", 0.0))
    )
    (one,) = receipts([*series(figures), replicas, rolling], GRID)
    assert one.gpu_hours_saved.value == pytest.approx(gpus * HOURS)
    # Replicas of a time that may lie within a roll are not those of before it.
    for unknown in ((), (replicas,)):
        (one,) = receipts([*series(figures), *unknown], GRID)
        assert one.gpu_hours_saved.value == 0.0


def test_ninety_percent_of_known_pasts_lie_within_their_bounds():
    """The bench prints this table for more pasts."""
    inside = tried = 0
    for kind in KnownPast:
        for seed in range(6):
            known = known_past(kind, 100 + seed, GRID.first_s, days=1)
            (one,) = added(replace(each, month="all") for each in receipts(known.on_grid(), known.grid))
            if one.claimed_hours:
                tried += 1
                inside += one.request_saved_s.lower <= known.truth_s <= one.request_saved_s.upper
                assert one.request_saved_s.lower <= known.upper_s
    assert tried >= 40
    assert inside >= 0.9 * tried


ONE = Receipt(
    ServiceKey("", "llm", "chat"), "2026-12", 1_796_083_200, 1_796_169_600, ("none",), Estimate(7200.0, 3600.0, 10_800.0),
    Estimate(10.0, 6.0, None), 4.0, 20.0, {"OtherLoad": 3.0, "OperatorSilent": 1.0},
)  # fmt: skip


def test_the_table_says_what_was_saved_what_it_cost_and_what_is_not_claimed():
    header, (cells,) = table([ONE], 2.5, "EUR")
    assert dict(zip(header, cells, strict=True)) == {
        "service": "llm/chat", "month": "2026-12", "hours": "20", "waiting saved h": "2 [1,3]", "GPU-h saved": "10 [6,-]",
        "calibrations GPU-h": "4", "net EUR": "15 [5,-]", "hours without a claim": "3 OtherLoad, 1 OperatorSilent",
    }  # fmt: skip
    assert notes([ONE])[0].startswith("Saved against no speculation")
    assert "net EUR" not in table([ONE])[0]


def test_focus_rows_bill_calibrations_alone_and_carry_the_receipt_beside():
    (row,) = csv.DictReader(io.StringIO(focus_csv([ONE], 2.5, "EUR")))
    wanted = {
        "BillingPeriodStart": "2026-12-01T00:00:00Z", "BillingPeriodEnd": "2027-01-01T00:00:00Z",
        "ChargePeriodStart": "2026-12-01T00:00:00Z", "ChargePeriodEnd": "2026-12-02T00:00:00Z", "ConsumedQuantity": "4",
        "ConsumedUnit": "GPU Hours", "EffectiveCost": "10", "BilledCost": "0", "BillingCurrency": "EUR", "ResourceId": "llm/chat",
        "x_GpuHoursSaved": "10", "x_GpuHoursSavedLower": "6", "x_GpuHoursSavedUpper": "", "x_NetCostSaved": "15",
        "x_RequestTimeSavedSecondsLower": "3600",
    }  # fmt: skip
    assert {name: row[name] for name in wanted} == wanted
    assert json.loads(row["x_UnclaimedHours"]) == {"OtherLoad": 3.0, "OperatorSilent": 1.0}
    # The mandatory columns of FOCUS 1.2.
    assert row.keys() >= {
        "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart",
        "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd", "ChargePeriodStart", "ContractedCost",
        "EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName",
        "ServiceCategory", "ServiceName",
    }  # fmt: skip


def test_the_document_has_bounds_and_null_where_nothing_is_claimed():
    empty = replace(
        ONE, request_saved_s=Estimate(), gpu_hours_saved=Estimate(), claimed_hours=0.0, against=()
    )
    found = document([ONE, empty], None, "")["receipts"]
    assert (found[0]["request_saved_s"], found[0]["request_saved_s_ci"]) == (7200.0, (3600.0, 10_800.0))
    assert (found[1]["request_saved_s"], found[1]["request_saved_s_ci"], found[1]["net_cost_saved"]) == (
        None,
        None,
        None,
    )


def test_a_page_of_the_report_shows_the_table_of_a_document(tmp_path):
    file, page = tmp_path / "receipts.json", tmp_path / "page.html"
    file.write_text(json.dumps(document([ONE], 2.5, "EUR")))
    assert of_document(json.loads(file.read_text()), "x") == ([ONE], 2.5, "EUR")
    words = ["report", str(POINTS), "-o", str(page), "--receipts", str(file)]
    assert CliRunner().invoke(root, words).exit_code == 0
    for part in ("Receipts", "net EUR", "3 OtherLoad, 1 OperatorSilent", MEANINGS["OtherLoad"]):
        assert part in page.read_text()
    file.write_text('{"receipts": [{}]}')
    done = CliRunner().invoke(root, words)
    assert (
        str(done.exception) == f"{file}: holds no receipts; expected the output of `breakeven savings --json`"
    )


def test_a_service_that_is_made_again_begins_its_cost_with_nothing():
    own = {"specsvc_namespace": "llm", "specsvc": "chat", "namespace": "breakeven", "pod": "op-1"}
    sums = [7200.0, 10_800.0, 3600.0, 3600.0]
    values = tuple(TimedValue(GRID.first_s + 300.0 * place, value) for place, value in enumerate(sums))
    spent = Samples({"__name__": "breakeven_calibrations_gpu_seconds_spent", **own}, values)
    (one,) = receipts([*series(), spent], GRID)
    assert one.calibration_gpu_hours == pytest.approx(2.0)


def test_replicas_of_before_an_old_roll_are_no_begin_of_the_cost():
    """The sum is seen first within the grid, a day and more after the last sample."""
    own = {"specsvc_namespace": "llm", "specsvc": "chat", "namespace": "breakeven", "pod": "op-1"}
    early = Samples({"__name__": "breakeven_ready_replicas", **own}, (TimedValue(GRID.first_s - 9e5, 2.0),))
    spent = Samples(
        {"__name__": "breakeven_calibrations_gpu_seconds_spent", **own}, (TimedValue(GRID.first_s + 600.0, 7200.0),)
    )  # fmt: skip
    (one,) = receipts([early, spent], GRID)
    assert one.calibration_gpu_hours == 0.0


def test_series_of_another_tenant_with_numbers_that_cannot_be_leave_all_other_receipts_as_they_are():
    more = {(f"{name}", (*arm, ("bound", "estimate"))): 5e-324 for name, arm in (
        ("capacity_requests_per_second", (("arm", "none"),)), ("gpus_not_needed", (("arm", "eagle/3"), ("basis", "Running"))),
    )}  # fmt: skip
    before = {"__name__": "breakeven_ready_replicas", "specsvc_namespace": "evil", "specsvc": "chat"}
    hostile = series(FIGURES | more | {("load_requests_per_second", ()): 3.0}, specsvc_namespace="evil")
    huge = [
        replace(one, values=tuple(TimedValue(at, 1e308) for at, _ in one.values))
        if one.labels["__name__"].endswith(("inflight_requests", "gpu_seconds_spent"))
        else one
        for one in hostile
    ]
    early = Samples({**before, "namespace": "breakeven", "pod": "op-1"}, (TimedValue(ROLLED_S - 300.0, 4.0),))
    for forged in (hostile, huge):
        found = receipts([*series(), *forged, early], GRID)
        assert [one for one in found if one.service.namespace == "llm"] == list(receipts(series(), GRID))
        assert table(found, 2.5)


@pytest.mark.parametrize("rolled_s", [lambda place: 1.0 + place, lambda _: math.inf])
def test_rolls_that_somebody_makes_up_are_few_questions_and_no_defect(rolled_s):
    asked = []

    def ask(question):
        asked.append(question)
        if "service_info" in question.promql:
            return [Samples({"specsvc_namespace": "evil", "specsvc": "chat"}, ())]
        if "roll_timestamp" not in question.promql:
            return []
        labels = {
            "__name__": "breakeven_roll_timestamp_seconds",
            "specsvc_namespace": "evil",
            "specsvc": "chat",
            **PAIR,
        }
        times = range(question.first_s, question.last_s + 1, 300)
        return [Samples(labels, tuple(TimedValue(at, rolled_s(place)) for place, at in enumerate(times)))]

    found = answered(reading([], GRID.last_s, 86_400, print), ask)
    assert [one.claimed_hours for one in found] == [0.0] * len(found)
    assert len(asked) < 20


def test_an_answer_that_is_refused_names_the_service_that_was_asked_about():
    def ask(question):
        if "service_info" in question.promql:
            return [Samples({"specsvc_namespace": "llm", "specsvc": "chat"}, ())]
        raise BreakevenError("Prometheus answered with more than 16 MiB")

    with pytest.raises(BreakevenError, match=r"^llm/chat: Prometheus answered with more than 16 MiB$"):
        answered(reading([], GRID.last_s, 3600, print), ask)


def test_a_service_whose_answer_is_refused_is_left_out_by_name_and_others_are_read():
    def ask(question):
        if "service_info" in question.promql:
            return [Samples({"specsvc_namespace": one, "specsvc": "chat"}, ()) for one in ("evil", "llm")]
        times = range(question.first_s, question.last_s + 1, 300)
        if 'specsvc_namespace="evil"' in question.promql:
            if GRID.last_s in times:
                raise BreakevenError("Prometheus answered with more than 16 MiB")
            own = {"specsvc_namespace": "evil", "specsvc": "chat"}
            ready = tuple(TimedValue(at, 1.0) for at in times)
            return [Samples({"__name__": "breakeven_ready_replicas", **own}, ready)]
        return series() if "(ready_replicas" not in question.promql and GRID.last_s in times else []

    said = list[str]()
    # Two parts, of which the second one is refused.
    found = answered(reading([], GRID.last_s, 8 * 86_400, said.append), ask)
    assert {one.service.namespace for one in found} == {"llm"}
    assert sum(one.claimed_hours for one in found) == pytest.approx(GRID.times * GRID.step_s / 3600)
    assert said == ["evil/chat: Prometheus answered with more than 16 MiB; the service is left out"]


def test_no_cell_of_a_label_is_a_formula():
    hostile = replace(ONE, service=ServiceKey("=HYPERLINK(1)", "@llm", "+chat"))
    (row,) = csv.DictReader(io.StringIO(focus_csv([hostile], 2.5, "EUR")))
    assert (row["BillingAccountId"], row["SubAccountId"], row["ResourceName"]) == (
        "'=HYPERLINK(1)",
        "'@llm",
        "'+chat",
    )
    assert not [name for name, cell in row.items() if cell.startswith(("=", "+", "@"))]
