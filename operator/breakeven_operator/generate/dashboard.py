"""The Grafana dashboard, made of the metrics that the operator exports and of the chart's recording rules.

Series of the operator's pods are joined by `max by`: a pod that is replaced would otherwise draw each line twice. The library
that makes it is a dependency of development: the operator's image carries the chart's rules no more than this.
"""

from __future__ import annotations

from itertools import count
from string import ascii_uppercase
from typing import NamedTuple

from grafana_foundation_sdk.builders import common, prometheus, timeseries
from grafana_foundation_sdk.builders import dashboard as board
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, TooltipDisplayMode
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, DataSourceRef, VariableRefresh

_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_CHOSEN = 'specsvc_namespace="$namespace",specsvc="$service"'
_WIDTH, _HEIGHT = 8, 8


class PanelQuery(NamedTuple):
    """One query of a panel, and how its series are called."""

    query: str
    legend: str


class PanelText(NamedTuple):
    """A panel: its title, what it tells, the unit of its figures, its queries."""

    title: str
    description: str
    unit: str
    lines: tuple[PanelQuery, ...]


def _of(metric: str, *by: str, more: str = "") -> str:
    """A gauge of the chosen service, one series for each value of some labels."""
    chosen = f"{_CHOSEN},{more}" if more else _CHOSEN
    return f"max by ({','.join(by)}) ({metric}{{{chosen}}})" if by else f"max({metric}{{{chosen}}})"


def _bounded(metric: str, name: str) -> PanelQuery:
    return PanelQuery(_of(metric, "arm", "bound"), f"{name} {{{{arm}}}} ({{{{bound}}}})")


def _panel_text(title: str, description: str, unit: str, *lines: PanelQuery) -> PanelText:
    return PanelText(title, description, unit, lines)


def _latency(figure: str, name: str) -> PanelText:
    chosen = f'figure="{figure}"'
    return _panel_text(
        f"{name} and its objective",
        "Measured quantiles, between edges of vLLM's histogram; the limit that 95 % of requests shall keep; the p95 that the "
        "profile predicts. Absent for services without an objective.",
        "s",
        PanelQuery(
            _of("breakeven_latency_quantile_seconds", "quantile", more=f'{chosen},bound="estimate"'),
            "measured p{{quantile}}",
        ),
        PanelQuery(
            _of(
                "breakeven_latency_quantile_seconds",
                "bound",
                more=f'{chosen},quantile="0.95",bound!="estimate"',
            ),
            "measured p0.95 ({{bound}})",
        ),
        PanelQuery(_of("breakeven_objective_seconds", more=chosen), "limit"),
        PanelQuery(
            _of("breakeven_objective_predicted_seconds", "bound", more=chosen),
            "predicted p0.95 ({{bound}})",
        ),
    )


ROWS: dict[str, tuple[PanelText, ...]] = {
    "What was decided": (
        _panel_text(
            "Load and break-even",
            "Requests per second and replica. Beyond the break-even speculation slows requests; its bounds say how well that is known.",
            "reqps",
            PanelQuery(_of("breakeven_load_requests_per_second"), "load"),
            PanelQuery(_of("breakeven_expected_peak_requests_per_second"), "expected peak"),
            _bounded("breakeven_break_even_requests_per_second", "break-even of"),
        ),
        _panel_text(
            "Speedup, promised and measured",
            "Latency without speculation over latency with it. Promised: by the profile at the present load. Measured: predicted "
            "latency without speculation over the latency that requests took.",
            "none",
            _bounded("breakeven_speedup_ratio", "promised"),
            _bounded("breakeven_measured_speedup_ratio", "measured"),
        ),
        _panel_text(
            "The last roll: promise against measurement",
            "Latency of the old arm over that of the new one, measured between the pods of both at one rate, and what was promised for that rate.",
            "none",
            PanelQuery(
                _of("breakeven_roll_speedup", "from_arm", "to_arm", "result", "figure", "bound"),
                "{{from_arm}} to {{to_arm}} ({{result}}): {{figure}} ({{bound}})",
            ),
        ),
        _panel_text(
            "Arm in place",
            "1 for the arm that the pods run, and for the one that should run.",
            "none",
            PanelQuery(_of("breakeven_current_arm_info", "arm"), "runs {{arm}}"),
            PanelQuery(_of("breakeven_recommended_arm_info", "arm"), "should run {{arm}}"),
            PanelQuery(_of("breakeven_rollout_in_progress"), "a roll is under way"),
        ),
        _panel_text(
            "Replicas",
            "What the target asks for, and what its load needs within the objectives.",
            "none",
            PanelQuery(_of("breakeven_target_replicas"), "asked for"),
            PanelQuery(_of("breakeven_recommended_replicas"), "recommended"),
        ),
        _panel_text(
            "Capacity",
            "Largest load per replica that keeps the objectives, by arm.",
            "reqps",
            _bounded("breakeven_capacity_requests_per_second", "capacity of"),
            PanelQuery(_of("breakeven_load_requests_per_second"), "load"),
        ),
        _panel_text(
            "Why",
            "What the last decision did, with its reason word.",
            "none",
            PanelQuery(_of("breakeven_decision_info", "action", "reason"), "{{action}}: {{reason}}"),
        ),
    ),
    "What users see": (
        _latency("e2e", "End-to-end latency"),
        _latency("ttft", "Time to first token"),
        _latency("tpot", "Time per output token"),
        _panel_text(
            "Attainment",
            "Share of the last window's requests within the limit. 95 % shall be.",
            "percentunit",
            PanelQuery(
                _of("breakeven_objective_attainment_ratio", "figure", "bound"),
                "{{figure}} ({{bound}})",
            ),
        ),
        _panel_text(
            "Burn of the error budget",
            "Share of requests that missed the limit, over the 5 % that may: 1 uses up a month's budget in a month. Alerts are at 14.4 "
            "(1 h and 5 min) and 6 (6 h and 30 min).",
            "none",
            *(
                PanelQuery(_of(f"specsvc_figure:breakeven_objective_missed:share_{window}", "figure") + " / 0.05", f"{{{{figure}}}} over {window}")
                for window in ("5m", "30m", "1h", "6h")
            ),
        ),
        _panel_text(
            "Requests in flight",
            "Per replica, and the load over the running arm's saturation.",
            "none",
            PanelQuery(_of("breakeven_inflight_requests"), "in flight"),
            PanelQuery(_of("breakeven_utilization_ratio"), "utilisation"),
        ),
    ),
    "What the profile is worth": (
        _panel_text(
            "Mean latency, measured and predicted",
            "Of the running arm at the present load.",
            "s",
            PanelQuery(_of("breakeven_observed_latency_seconds"), "measured"),
            PanelQuery(_of("breakeven_predicted_latency_seconds"), "predicted"),
        ),
        _panel_text(
            "Measured over predicted latency",
            "Median of the last windows, with bounds; 1 where the profile is right.",
            "none",
            _bounded("breakeven_model_error_ratio", "measured over predicted"),
        ),
        _panel_text(
            "Acceptance by position",
            "Share of drafts whose first tokens up to a position were all accepted, live and when the arm was calibrated.",
            "percentunit",
            PanelQuery(_of("breakeven_draft_survival_ratio", "position", "seen"), "{{position}} {{seen}}"),
        ),
        _panel_text(
            "Tokens per step",
            "Of the running arm, bonus token included; 1 without speculation. Beside it the longest draft.",
            "none",
            PanelQuery(_of("breakeven_tokens_per_step"), "tokens per step"),
            PanelQuery(_of("breakeven_current_draft_tokens"), "drafted at most"),
        ),
        _panel_text(
            "Calibration",
            "Conditions of the service, 1 for what each says now.",
            "none",
            PanelQuery(
                _of("breakeven_condition_info", "condition", "status", "reason"),
                "{{condition}} {{status}}: {{reason}}",
            ),
            PanelQuery(_of("breakeven_calibrations_failed"), "calibrations that failed in a row"),
        ),
        _panel_text(
            "Age of the profile",
            "Time since the profile in force was measured.",
            "s",
            PanelQuery(_of("breakeven_profile_age_seconds"), "age"),
        ),
        _panel_text(
            "Cost of a request in flight",
            "C1,R and C2,R: cost of a lone request and of each other request in flight with the arm, over no speculation. Above 1 the arm loses there.",
            "none",
            PanelQuery(_of("breakeven_c1_ratio", "arm"), "C1,R {{arm}}"),
            _bounded("breakeven_c2_ratio", "C2,R"),
        ),
    ),
    "What speculation is worth": (
        _panel_text(
            "Request time saved",
            "Since the last roll, by its measured speedup; below 0 lost. Begins again with each roll.",
            "s",
            PanelQuery(_of("breakeven_request_saved_seconds", "against", "bound"), "against {{against}} ({{bound}})"),
        ),
        _panel_text(
            "GPUs not needed",
            "Of the running arm at the expected load, within the objectives; below 0 it needs more. Saved only if somebody removes them.",
            "none",
            PanelQuery(
                _of("breakeven_gpus_not_needed", "arm", "bound", more='basis="Running"'), "{{arm}} ({{bound}})"
            ),
        ),
    ),
    "The operator": (
        _panel_text(
            "Health",
            "Replicas that act (1 is right), services watched, and rolls that were undone in a row.",
            "none",
            PanelQuery("sum(breakeven_leader)", "act"),
            PanelQuery("max(breakeven_services)", "services"),
            PanelQuery("sum(breakeven_stale)", "services that a defect keeps from being decided"),
            PanelQuery("sum(breakeven_rolls_undone)", "rolls undone in a row"),
        ),
        _panel_text(
            "Age of the evidence",
            "Time since the newest sample behind the figures above, and since the last decision.",
            "s",
            PanelQuery(f"time() - {_of('breakeven_evidence_timestamp_seconds')}", "newest sample"),
            PanelQuery(f"time() - {_of('breakeven_decision_timestamp_seconds')}", "last decision"),
        ),
        _panel_text(
            "Time of a cycle",
            "One pass over all services, and its stages.",
            "s",
            *(
                PanelQuery(
                    f"histogram_quantile({share}, sum by (le) (rate(breakeven_cycle_duration_seconds_bucket[5m])))",
                    f"p{share}",
                )
                for share in ("0.5", "0.95")
            ),
            PanelQuery(
                "histogram_quantile(0.95, sum by (le,stage) (rate(breakeven_cycle_stage_seconds_bucket[5m])))",
                "p0.95 {{stage}}",
            ),
        ),
        _panel_text(
            "Queries and requests",
            "To Prometheus by outcome, and to the API server by status code, per second.",
            "reqps",
            PanelQuery("sum by (outcome) (rate(breakeven_prometheus_queries_total[5m]))", "Prometheus: {{outcome}}"),
            PanelQuery("sum by (code) (rate(breakeven_api_requests_total[5m]))", "API server: {{code}}"),
        ),
        _panel_text(
            "Errors",
            "By reason word, per second.",
            "none",
            PanelQuery("sum by (reason) (rate(breakeven_errors_total[5m]))", "{{reason}}"),
        ),
        _panel_text(
            "Rolls and calibrations",
            "That have ended, by result.",
            "none",
            PanelQuery("sum by (result) (breakeven_rollouts_total)", "rolls: {{result}}"),
            PanelQuery("sum by (reason) (breakeven_calibrations_total)", "calibrations: {{reason}}"),
        ),
    ),
}  # fmt: skip


def dashboard_json() -> str:
    """The dashboard as Grafana imports it."""
    made = (
        board.Dashboard("Breakeven: speculative decoding")
        .uid("breakeven")
        .tags(["breakeven", "vllm"])
        .time("now-6h", "now")
        .refresh("30s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(board.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(_variable("namespace", "label_values(breakeven_service_info, specsvc_namespace)"))
        .with_variable(
            _variable(
                "service", 'label_values(breakeven_service_info{specsvc_namespace="$namespace"}, specsvc)'
            )
        )
    )
    number = count(1)
    for title, panels in ROWS.items():
        made = made.with_row(board.Row(title).id(next(number)))
        for panel in panels:
            made = made.with_panel(_panel(panel).id(next(number)))
    return JSONEncoder(sort_keys=True, indent=2).encode(made.build()) + "\n"


def _variable(name: str, query: str) -> board.QueryVariable:
    refresh = VariableRefresh.ON_TIME_RANGE_CHANGED
    return board.QueryVariable(name).datasource(_SOURCE).query(query).refresh(refresh)


def _panel(panel: PanelText) -> timeseries.Panel:
    made = (
        timeseries.Panel()
        .title(panel.title)
        .description(panel.description)
        .unit(panel.unit)
        .datasource(_SOURCE)
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
        .span(_WIDTH)
        .height(_HEIGHT)
    )
    for ref, line in zip(ascii_uppercase, panel.lines, strict=False):
        query = prometheus.Dataquery().expr(line.query).legend_format(line.legend).ref_id(ref)
        made = made.with_target(query)
    return made
