"""The Grafana dashboard, made of the metrics that the operator exports, of the chart's recording rules, and of vLLM's histograms.

Series of the operator's pods are joined by `max by`: a pod that is replaced would otherwise draw each line twice. The library
that makes it is a dependency of development: the operator's image carries the chart's rules no more than this.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from string import ascii_uppercase
from typing import Any, Literal, NamedTuple

from grafana_foundation_sdk.builders import common, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders import dashboard as board
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    LegendDisplayMode,
    LegendPlacement,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLink,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    ValueMap,
    ValueMappingResult,
    VariableHide,
    VariableRefresh,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_CHOSEN = 'specsvc_namespace="$namespace",specsvc="$service"'
# Pods of the target by their names: every kind of target puts up to three parts behind its own name.
_PODS = 'namespace="$namespace",pod=~"$target(-predictor)?(-[a-z0-9]{1,10})?-[a-z0-9]{1,5}"'
_WHOLE = 24
_UID = "breakeven"

Kind = Literal["lines", "stat", "timeline", "table"]
_SIZES: dict[Kind, tuple[int, int]] = {"lines": (8, 8), "stat": (6, 4), "timeline": (24, 6), "table": (24, 9)}
"""Width and height; the panels of a line that they do not fill are widened."""


class PanelQuery(NamedTuple):
    """One query of a panel, and how its series are called; of a table the title of the column with its figure, empty for labels alone."""

    query: str
    legend: str


class PanelText(NamedTuple):
    """A panel: its title, what it tells, the unit of its figures, its queries, and how they are shown."""

    title: str
    description: str
    unit: str
    lines: tuple[PanelQuery, ...]
    kind: Kind = "lines"


def _of(metric: str, *by: str, more: str = "") -> str:
    """A gauge of the chosen service, one series for each value of some labels."""
    chosen = f"{_CHOSEN},{more}" if more else _CHOSEN
    return f"max by ({','.join(by)}) ({metric}{{{chosen}}})" if by else f"max({metric}{{{chosen}}})"


def _fleet(metric: str, *by: str) -> str:
    """A gauge of every service."""
    return f"max by ({','.join(('specsvc_namespace', 'specsvc', *by))}) ({metric})"


def _bounded(metric: str, name: str) -> PanelQuery:
    return PanelQuery(_of(metric, "arm", "bound"), f"{name} {{{{arm}}}} ({{{{bound}}}})")


def _panel_text(
    title: str, description: str, unit: str, *lines: PanelQuery, kind: Kind = "lines"
) -> PanelText:
    return PanelText(title, description, unit, lines, kind)


def _own_quantiles(figure: str, family: str) -> Iterator[PanelQuery]:
    """Quantiles of all pods of the target by vLLM's own histogram, while no objective is set for the figure."""
    objective = _of("breakeven_objective_seconds", more=f'figure="{figure}"')
    for share in ("0.5", "0.95"):
        buckets = f"sum by (le) (rate(vllm:{family}_seconds_bucket{{{_PODS}}}[5m]))"
        yield PanelQuery(
            f"histogram_quantile({share}, {buckets}) unless on () {objective}", f"all pods, p{share}"
        )


def _latency(figure: str, name: str, family: str) -> PanelText:
    chosen = f'figure="{figure}"'
    return _panel_text(
        f"{name} and its objective",
        "Measured quantiles, between edges of vLLM's histogram; the limit that 95 % of requests shall keep; the p95 that the "
        "profile predicts. Without an objective: quantiles of all pods by vLLM's histogram, whose names begin with vllm:.",
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
        *_own_quantiles(figure, family),
    )


ROWS: dict[str, tuple[PanelText, ...]] = {
    "Fleet": (
        _panel_text(
            "All services",
            "The columns of kubectl get; a service's name opens its figures below.",
            "none",
            PanelQuery(_fleet("breakeven_service_info", "mode", "target"), ""),
            PanelQuery(_fleet("breakeven_current_arm_info", "arm"), ""),
            PanelQuery(_fleet('breakeven_condition_info{condition="Profitable"}', "status"), ""),
            PanelQuery(_fleet('breakeven_speedup_ratio{bound="estimate"}'), "Speedup"),
            PanelQuery(_fleet('breakeven_break_even_requests_per_second{bound="estimate"}'), "Break-even"),
            PanelQuery(_fleet("breakeven_load_requests_per_second"), "Load"),
            PanelQuery(
                "max by (specsvc_namespace,specsvc,recommended) "
                '(label_replace(breakeven_recommended_arm_info, "recommended", "$1", "arm", "(.*)"))',
                "",
            ),
            PanelQuery(_fleet("breakeven_decision_info", "reason"), ""),
            kind="table",
        ),
    ),
    "What was decided": (
        _panel_text(
            "Pays",
            "Whether speculation pays at the present load, by the condition Profitable.",
            "none",
            PanelQuery(_of("breakeven_condition_info", "status", more='condition="Profitable"'), "{{status}}"),
            kind="stat",
        ),
        _panel_text(
            "Speedup",
            "Latency without speculation over latency with it, by the profile at the present load.",
            "none",
            PanelQuery(_of("breakeven_speedup_ratio", "arm", more='bound="estimate"'), "{{arm}}"),
            kind="stat",
        ),
        _panel_text(
            "Load",
            "Requests per second and replica.",
            "reqps",
            PanelQuery(_of("breakeven_load_requests_per_second"), "load"),
            kind="stat",
        ),
        _panel_text(
            "Break-even",
            "Requests per second and replica beyond which speculation slows requests.",
            "reqps",
            PanelQuery(_of("breakeven_break_even_requests_per_second", "arm", more='bound="estimate"'), "{{arm}}"),
            kind="stat",
        ),
        _panel_text(
            "Arm",
            "The arm that the pods run, the arm that should run, and rolls.",
            "none",
            PanelQuery(_of("breakeven_current_arm_info", "arm"), "runs {{arm}}"),
            PanelQuery(_of("breakeven_recommended_arm_info", "arm"), "should run {{arm}}"),
            PanelQuery(_of("breakeven_rollout_in_progress") + " == 1", "a roll is under way"),
            kind="timeline",
        ),
        _panel_text(
            "Reason",
            "What the last decision did, with its reason word.",
            "none",
            PanelQuery(_of("breakeven_decision_info", "action", "reason"), "{{action}}: {{reason}}"),
            kind="timeline",
        ),
        _panel_text(
            "Conditions",
            "What each condition of the service says, with its reason word.",
            "none",
            PanelQuery(
                _of("breakeven_condition_info", "condition", "status", "reason"),
                "{{condition}} {{status}}: {{reason}}",
            ),
            kind="timeline",
        ),
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
    ),
    "What users see": (
        _latency("e2e", "End-to-end latency", "e2e_request_latency"),
        _latency("ttft", "Time to first token", "time_to_first_token"),
        _latency("tpot", "Time per output token", "request_time_per_output_token"),
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
            "Calibrations that failed",
            "In a row; 0 after one that made a profile.",
            "none",
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
        .uid(_UID)
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
        .with_variable(
            _variable("target", f"label_values(breakeven_service_info{{{_CHOSEN}}}, target)")
            .regex("/[^/]*\\/(.*)/")
            .hide(VariableHide.HIDE_VARIABLE)
        )
    )
    number = count(1)
    for title, panels in ROWS.items():
        made = made.with_row(board.Row(title).id(next(number)))
        for panel, width in _in_lines(panels):
            made = made.with_panel(_panel(panel, width).id(next(number)))
    for name, _, expression, colour in _ANNOTATIONS:
        marked = board.AnnotationQuery().name(name).datasource(_SOURCE).expr(expression)
        made = made.annotation(marked.enable(True).icon_color(colour))
    page = json.loads(JSONEncoder().encode(made.build()))
    for one, (_, text, *_) in zip(page["annotations"]["list"], _ANNOTATIONS, strict=True):
        # The library has no field for it.
        one["titleFormat"] = text
    return json.dumps(page, sort_keys=True, indent=2) + "\n"


_ANNOTATIONS = (
    ("Rolls", "a roll is under way", _of("breakeven_rollout_in_progress") + " == 1", "blue"),
    (
        "Alerts",
        "{{alertname}}",
        f'max by (alertname) (ALERTS{{alertstate="firing",{_CHOSEN}}})',
        "red",
    ),
)
"""Name, title, query and colour of what is marked in every picture over time."""


def _in_lines(panels: Sequence[PanelText]) -> Iterator[tuple[PanelText, int]]:
    """The panels with their widths: each line of the page is full."""
    line: list[PanelText] = []
    for panel, after in zip(panels, (*panels[1:], None), strict=True):
        line.append(panel)
        width, _ = _SIZES[panel.kind]
        if after is None or after.kind != panel.kind or (len(line) + 1) * width > _WHOLE:
            yield from ((one, _WHOLE // len(line)) for one in line)
            line = []


def _variable(name: str, query: str) -> board.QueryVariable:
    refresh = VariableRefresh.ON_TIME_RANGE_CHANGED
    return board.QueryVariable(name).datasource(_SOURCE).query(query).refresh(refresh)


def _panel(panel: PanelText, width: int) -> Any:
    made = _KINDS[panel.kind](panel)
    made = made.title(panel.title).description(panel.description).unit(panel.unit).datasource(_SOURCE)
    made = made.span(width).height(_SIZES[panel.kind][1])
    for ref, line in zip(ascii_uppercase, panel.lines, strict=False):
        query = prometheus.Dataquery().expr(line.query).legend_format(line.legend).ref_id(ref)
        if panel.kind == "table":
            query = query.instant().format(PromQueryFormat.TABLE)
        made = made.with_target(query)
    return made


def _lines(_: PanelText) -> timeseries.Panel:
    return (
        timeseries.Panel()
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    )


def _stat(panel: PanelText) -> stat.Panel:
    # A condition is the name of a series whose figure is 1.
    mode = BigValueTextMode.NAME if panel.title == "Pays" else BigValueTextMode.VALUE_AND_NAME
    made = stat.Panel().text_mode(mode).color_mode(BigValueColorMode.NONE).graph_mode(BigValueGraphMode.AREA)
    return made.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))


def _timeline(_: PanelText) -> statetimeline.Panel:
    # A series is a row that is there while its figure is 1.
    made = statetimeline.Panel().merge_values(True).show_value(VisibilityMode.NEVER)
    return made.mappings([ValueMap({"1": ValueMappingResult(text="yes", color="green")})])


_COLUMNS = {
    "specsvc_namespace": "Namespace",
    "specsvc": "Service",
    "arm": "Arm",
    "status": "Pays",
    "recommended": "Recommended",
    "reason": "Reason",
    "mode": "Mode",
    "target": "Target",
}
_ORDER = (
    "Namespace",
    "Service",
    "Arm",
    "Pays",
    "Speedup",
    "Break-even",
    "Load",
    "Recommended",
    "Reason",
    "Mode",
    "Target",
)
_PAYS = {"True": "Yes", "False": "No", "Unknown": "?"}


def _table(panel: PanelText) -> table.Panel:
    """One line per service: labels and figures of all queries, joined by namespace and name."""
    figures = {f"Value #{ref}": line.legend for ref, line in zip(ascii_uppercase, panel.lines, strict=False)}
    titles = {**_COLUMNS, **{name: title for name, title in figures.items() if title}}
    arranged: dict[str, Any] = {
        "excludeByName": {"Time": True, **{name: True for name, title in figures.items() if not title}},
        "renameByName": titles,
        "indexByName": {name: _ORDER.index(title) for name, title in titles.items()},
    }
    opened = DashboardLink(
        title="Its figures",
        url=f'/d/{_UID}?var-namespace=${{__data.fields["Namespace"]}}&var-service=${{__data.fields["Service"]}}',
    )
    words = [ValueMap({name: ValueMappingResult(text=text) for name, text in _PAYS.items()})]
    made = table.Panel().with_transformation(DataTransformerConfig(id_val="merge", options={}))
    made = made.with_transformation(DataTransformerConfig(id_val="organize", options=arranged))
    made = made.override_by_name("Service", [DynamicConfigValue(id_val="links", value=[opened])])
    made = made.override_by_name("Pays", [DynamicConfigValue(id_val="mappings", value=words)])
    made = made.override_by_name("Speedup", [DynamicConfigValue(id_val="decimals", value=2)])
    for name in ("Break-even", "Load"):
        made = made.override_by_name(name, [DynamicConfigValue(id_val="unit", value="reqps")])
    return made


# The builders of the four kinds have no common type that names what they share.
_KINDS: Mapping[Kind, Callable[[PanelText], Any]] = {
    "lines": _lines,
    "stat": _stat,
    "timeline": _timeline,
    "table": _table,
}
