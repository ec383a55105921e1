"""`breakeven savings`: what speculation saved or lost in each month, of the operator's own metrics."""

from __future__ import annotations

import re
import time
from typing import Any

import click

from breakeven.cli.output import (
    DEFAULT_CONFIDENCE,
    echo_result,
    json_option,
    print_table,
    print_text,
    print_warnings,
)
from breakeven.cli.parameters import Number
from breakeven.cli.prometheus_options import (
    AskedPrometheus,
    prometheus_options,
    read_matcher,
    span_seconds,
    timeout_option,
)
from breakeven.errors import InputError

_CURRENCY = re.compile(r"[A-Z]{3}")


def _price(server: AskedPrometheus, given: float | None) -> float | None:
    """The given price, else the operator's; None if neither is set, or operators have several."""
    if given is not None:
        return given
    found = {value for _, value in server.at("breakeven_gpu_price_per_hour") if value > 0.0}
    return found.pop() if len(found) == 1 else None


@click.command("savings")
@prometheus_options
@click.option(
    "--since",
    "since_s",
    default="30d",
    show_default=True,
    callback=span_seconds,
    metavar="SPAN",
    help="How far back to look: m, h, d or w behind a number.",
)
@click.option("--namespace", metavar="NAME", help="Services of this namespace.  [default: of all]")
@click.option("--service", metavar="NAME", help="Services of this name.")
@click.option(
    "--match",
    multiple=True,
    metavar="LABEL=VALUE",
    help="Label matchers on the operator's series, such as cluster=prod; =, !=, =~ and !~ as in PromQL.",
)
@click.option(
    "--price-per-gpu-hour",
    "price",
    type=Number(1e-6, 1e6),
    help="Shows money.  [default: the chart's board.gpuPricePerHour]",
)
@click.option("--currency", default="", metavar="CODE", help="Of that price, such as EUR.")
@timeout_option(30.0)
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="csv has columns of FOCUS 1.2.",
)
@json_option
def command(form: str, *, as_json: bool, **options: Any) -> None:
    """Add up what speculation saved or lost, for each service and calendar month (UTC), from experiments alone.

    A window of five minutes is claimed if a roll that was measured led to the running arm, at most 30 days ago and at a load within
    a factor of 1.5, or if a standing control measures the arm now. Requests in flight, times the measured speedup less 1, are its
    request time; less if the law says that the gain has shrunk since. GPU-hours count only for replicas that no speculation would need, and that were removed after the roll. All other
    hours are listed with the reason why nothing is claimed. Bounds add up linearly.

    \b
    Examples:
      breakeven savings --prometheus http://localhost:9090 --since 90d
      breakeven savings --prometheus http://localhost:9090 --price-per-gpu-hour 2.5 --currency EUR -o csv
    """
    from breakeven.past.receipt_reading import answered, reading
    from breakeven.past.receipt_table import document, focus_csv, notes, table
    from breakeven.serving.promql import Matcher

    currency = options["currency"]
    if currency and not _CURRENCY.fullmatch(currency):
        raise InputError("--currency", repr(currency[:24]), "three capital letters, such as EUR")
    server = AskedPrometheus.of(options["access"], options["timeout_seconds"])
    matchers = [*map(read_matcher, options["match"])]
    matchers += [
        Matcher(label, "=", options[name])
        for label, name in (("specsvc_namespace", "namespace"), ("specsvc", "service"))
        if options[name] is not None
    ]
    left_out: list[str] = []
    found = answered(reading(matchers, time.time(), options["since_s"], left_out.append), server.asked)
    price = _price(server, options["price"])
    if as_json or form == "json":
        echo_result(
            document(found, price, currency) | {"confidence": DEFAULT_CONFIDENCE, "warnings": left_out}
        )
    elif form == "csv":
        click.echo(focus_csv(found, price, currency), nl=False)
        for line in left_out:
            click.echo(f"! {line}", err=True)
    else:
        print_table(*table(found, price, currency))
        for one in notes(found):
            print_text(one, mark="  ")
        print_warnings(left_out)
