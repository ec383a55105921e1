"""Options of a question about a workload's past at a Prometheus, and the reading of it with a progress bar."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from breakeven.cli.output import several
from breakeven.cli.prometheus_options import (
    AskedPrometheus,
    prometheus_options,
    read_matcher,
    read_prefix,
    series_options,
)
from breakeven.errors import InputError

if TYPE_CHECKING:
    from breakeven.past.past_reading import AskedPast, KnownPast
    from breakeven.serving.promql import Matcher

_UNITS_S = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_LONGEST_S = 400 * 86400
_MOST_WINDOWS = 20_000
_POD_OF = r"-([a-z0-9]+-)?[a-z0-9]+"
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_STEPS = 1000


def _seconds(_ctx: click.Context, _param: click.Parameter, text: str) -> int:
    """A span such as 14d, 36h or 90m, in seconds.

    Raises:
        click.BadParameter: it is none, or beyond 400 days.
    """
    found = re.fullmatch(r"(\d{1,6})([mhdw])", text.strip())
    seconds = int(found[1]) * _UNITS_S[found[2]] if found else 0
    if not 0 < seconds <= _LONGEST_S:
        raise click.BadParameter(f"{text!r} is no span; expected such as 14d, 36h or 90m, at most 400d")
    return seconds


past_options = several(
    prometheus_options,
    click.option(
        "--since",
        "since_s",
        default="14d",
        show_default=True,
        callback=_seconds,
        metavar="SPAN",
        help="How far back to look: m, h, d or w behind a number.",
    ),
    click.option("--deployment", metavar="NS/NAME", help="Only pods of this Deployment or StatefulSet."),
    series_options(timeout_s=30.0),
    click.option(
        "--method",
        help="Name of the method (or drafter) that ran, where no series says it: vLLM's counters do not.",
    ),
    click.option(
        "--window-seconds",
        type=click.IntRange(120, 21600),
        default=600,
        show_default=True,
        help="Length of a window of the past; at least four scrapes.",
    ),
)
"""`PastQuestion.of` takes them out of a command's options."""


class PastQuestion(NamedTuple):
    """A question about a past, and the server that is asked."""

    server: AskedPrometheus
    asked: AskedPast

    @classmethod
    def of(cls, options: dict[str, Any]) -> PastQuestion:
        """Take the options out of a command's.

        Raises:
            InputError: one of them is wrong.
        """
        from breakeven.past.courses import TimeGrid
        from breakeven.past.past_reading import AskedPast

        server = AskedPrometheus.of(options, options.pop("timeout_seconds"))
        since_s, window_s = options.pop("since_s"), options.pop("window_seconds")
        if since_s < 2 * window_s or since_s / window_s > _MOST_WINDOWS:
            raise InputError(
                "--since",
                f"{since_s} s with windows of {window_s} s",
                f"2 to {_MOST_WINDOWS} windows: see --window-seconds",
            )
        matchers = (*_of_deployment(options.pop("deployment")), *map(read_matcher, options.pop("match")))
        asked = AskedPast(
            matchers,
            read_prefix(options.pop("metric_prefix")),
            TimeGrid.of_past(time.time(), since_s, window_s),
            _checked(options.pop("method")),
            single=not matchers,
        )
        return cls(server, asked)

    def read(self) -> KnownPast:
        """Ask, with a progress bar where somebody looks.

        Raises:
            BreakevenError: no usable answer, or nothing that counts.
        """
        from breakeven.past.past_reading import read_past

        # Where nobody looks, the bar would be a line before that of an error.
        hidden = not sys.stderr.isatty()
        with click.progressbar(
            length=_STEPS, label="asking Prometheus", file=sys.stderr, hidden=hidden
        ) as bar:

            def show(share: float) -> None:
                bar.update(round(_STEPS * share) - bar.pos)

            return read_past(self.server, self.asked, show)


def _of_deployment(name: str | None) -> tuple[Matcher, ...]:
    """Matchers of the pods of a workload.

    Raises:
        InputError: it is no NS/NAME.
    """
    from breakeven.serving.promql import Matcher

    if name is None:
        return ()
    space, slash, own = name.partition("/")
    if not slash or not _NAME.fullmatch(space) or not _NAME.fullmatch(own):
        raise InputError("--deployment", repr(name), "NAMESPACE/NAME")
    return (
        Matcher("namespace", "=", space),
        Matcher("pod", "=~", re.escape(own).replace("\\-", "-") + _POD_OF),
    )


def _checked(method: str | None) -> str | None:
    """A method's name as a points file takes it.

    Raises:
        InputError: it is none.
    """
    if method is None:
        return None
    if method == "none" or not re.fullmatch(r"[!-.0-~]{1,64}", method):
        raise InputError(
            "--method", repr(method[:64]), "vLLM's name of the speculative method, such as eagle3"
        )
    return method
