"""Receipts as people and programs read them: a table, a document, and rows in columns of FOCUS. Pure.

Saved GPU-hours are no credit on anybody's bill, so the costs of FOCUS are of calibrations alone, and savings stand in columns of our own.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from breakeven.errors import InputError
from breakeven.estimate import Estimate
from breakeven.past.receipts import MEANINGS, Receipt, ServiceKey, Unclaimed
from breakeven.phrases import bounded_text, column, figure, spoken

NO_CURRENCY: Final = "XXX"
"""ISO 4217's code of no currency."""
_GPU_HOURS = "GPU Hours"
_MOST_CAUSES = 2
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def table(
    found: Sequence[Receipt], price: float | None = None, currency: str = ""
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Header and cells of the table that terminal, board and report show; with a price the last column but one is money."""
    money = (f"net {currency}".strip(),) if price else ()
    header = (
        "service", "month", "hours", "waiting saved h", "GPU-h saved", "calibrations GPU-h", *money, "hours without a claim",
    )  # fmt: skip
    return header, [_cells(one, price) for one in found]


def _cells(one: Receipt, price: float | None) -> Sequence[str]:
    causes = list(one.unclaimed_hours.items())
    shown = [f"{figure(hours)} {word}" for word, hours in causes[:_MOST_CAUSES]]
    shown += (
        [f"{figure(sum(hours for _, hours in causes[_MOST_CAUSES:]))} other"] if causes[_MOST_CAUSES:] else []
    )
    return (
        "/".join(filter(None, one.service)),
        one.month,
        figure(one.claimed_hours),
        _bounded(one.request_saved_s.times(1.0 / 3600.0)),
        _bounded(one.gpu_hours_saved),
        column(one.calibration_gpu_hours),
        *([_bounded(one.net_gpu_hours().times(price))] if price else []),
        ", ".join(shown) or "-",
    )


def notes(found: Sequence[Receipt]) -> Sequence[str]:
    """Sentences below the table: what the figures are against, and what each word in it means."""
    arms = sorted({arm for one in found for arm in one.against})
    said = (
        [f"Saved against {', '.join(map(spoken, arms))}, which ran before the measured roll; below 0 lost."]
        if arms
        else []
    )
    words = dict.fromkeys(word for one in found for word in one.unclaimed_hours)
    return [*said, *(f"{word}: {MEANINGS[word]}" for word in words)]


def document(found: Sequence[Receipt], price: float | None, currency: str) -> dict[str, Any]:
    """The same facts for programs; bounds are `[lower, upper]`, and null where nothing is claimed or an end is open."""
    return {
        "price_per_gpu_hour": price,
        "currency": currency or None,
        "receipts": [_object(one, price) for one in found],
    }


def _object(one: Receipt, price: float | None) -> dict[str, Any]:
    figures = {
        "request_saved_s": one.request_saved_s,
        "gpu_hours_saved": one.gpu_hours_saved,
        "net_cost_saved": one.net_gpu_hours().times(price) if price else Estimate(),
    }
    return {
        "cluster": one.service.cluster or None,
        "namespace": one.service.namespace,
        "service": one.service.name,
        "month": one.month,
        "from_s": one.first_s,
        "to_s": one.last_s,
        "against": list(one.against),
        **{name: known.value for name, known in figures.items()},
        **{f"{name}_ci": known.bounds for name, known in figures.items()},
        "calibration_gpu_hours": one.calibration_gpu_hours,
        "claimed_hours": one.claimed_hours,
        "unclaimed_hours": dict(one.unclaimed_hours),
    }


def of_document(found: Any, where: str) -> tuple[Sequence[Receipt], float | None, str]:
    """Receipts, price and currency of a document.

    Raises:
        InputError: it is none.
    """
    try:
        price, currency = found["price_per_gpu_hour"], found["currency"] or ""
        return (
            [_receipt(one) for one in found["receipts"]],
            None if price is None else float(price),
            str(currency),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(where, "holds no receipts", "the output of `breakeven savings --json`") from error


def _receipt(one: Mapping[str, Any]) -> Receipt:
    def estimate(name: str) -> Estimate:
        return Estimate.of(one[name], one[f"{name}_ci"]).times(1.0)

    return Receipt(
        ServiceKey(str(one["cluster"] or ""), str(one["namespace"]), str(one["service"])),
        str(one["month"]),
        int(one["from_s"]),
        int(one["to_s"]),
        tuple(map(str, one["against"])),
        estimate("request_saved_s"),
        estimate("gpu_hours_saved"),
        float(one["calibration_gpu_hours"]),
        float(one["claimed_hours"]),
        {str(Unclaimed(word)): float(hours) for word, hours in one["unclaimed_hours"].items()},
    )


def focus_csv(found: Sequence[Receipt], price: float | None, currency: str) -> str:
    """Rows in columns of FOCUS 1.2, one for each service and month: usage is what calibrations held, `x_` columns are the receipt."""
    text = io.StringIO()
    rows = [_focus_row(one, price, currency) for one in found]
    names = list(rows[0]) if rows else []
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _focus_row(one: Receipt, price: float | None, currency: str) -> Mapping[str, Any]:
    begin, end = _month_of(one.month)
    cost = _number(one.calibration_gpu_hours * price) if price else ""
    cluster, namespace, name = (_cell(part) for part in one.service)
    return {
        # The invoice of the GPUs has these hours already.
        "BilledCost": 0,
        "BillingAccountId": cluster or "cluster",
        "BillingAccountName": cluster,
        "BillingCurrency": currency or NO_CURRENCY,
        "BillingPeriodEnd": end,
        "BillingPeriodStart": begin,
        "ChargeCategory": "Usage",
        "ChargeClass": "",
        "ChargeDescription": f"GPU-hours that calibrations of {namespace}/{name} held; what speculation saved in x_ columns",
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodEnd": _instant(one.last_s),
        "ChargePeriodStart": _instant(one.first_s),
        "ConsumedQuantity": _number(one.calibration_gpu_hours),
        "ConsumedUnit": _GPU_HOURS,
        "ContractedCost": cost,
        "EffectiveCost": cost,
        "InvoiceIssuerName": "Breakeven",
        "ListCost": cost,
        "PricingQuantity": _number(one.calibration_gpu_hours),
        "PricingUnit": _GPU_HOURS,
        "ProviderName": "Breakeven",
        "PublisherName": "Breakeven",
        "ResourceId": "/".join(filter(None, (cluster, namespace, name))),
        "ResourceName": name,
        "ResourceType": "SpeculativeService",
        "ServiceCategory": "AI and Machine Learning",
        "ServiceName": "Speculative decoding",
        "SubAccountId": namespace,
        "SubAccountName": namespace,
        "Tags": json.dumps({"against": ",".join(one.against)}) if one.against else "{}",
        **_columns("x_RequestTimeSavedSeconds", one.request_saved_s),
        **_columns("x_GpuHoursSaved", one.gpu_hours_saved),
        **_columns("x_NetCostSaved", one.net_gpu_hours().times(price) if price else Estimate()),
        "x_ClaimedHours": _number(one.claimed_hours),
        "x_UnclaimedHours": json.dumps(
            {word: round(hours, 4) for word, hours in one.unclaimed_hours.items()}
        ),
    }


def _cell(label: str) -> str:
    """A label's value as text that no spreadsheet takes for a formula."""
    return f"'{label}" if label.startswith(_FORMULA) else label


def _columns(name: str, known: Estimate) -> Mapping[str, str]:
    ends = zip(("", "Lower", "Upper"), (known.value, known.lower, known.upper), strict=True)
    return {f"{name}{end}": "" if value is None else _number(value) for end, value in ends}


def _month_of(month: str) -> tuple[str, str]:
    """Begin of a month and of the next one."""
    year, number = map(int, month.split("-"))
    after = (year + number // 12, number % 12 + 1)
    return f"{month}-01T00:00:00Z", f"{after[0]}-{after[1]:02d}-01T00:00:00Z"


def _instant(time_s: int) -> str:
    return f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _number(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".") if value else "0"


def _bounded(known: Estimate) -> str:
    return "-" if known.value is None else bounded_text(known)
