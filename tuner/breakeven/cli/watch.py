"""`breakeven watch`: a workload's present load on the curves of its own past, live in a terminal."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from breakeven.cli.output import DEFAULT_CONFIDENCE, echo_result, json_option
from breakeven.cli.parameters import Number
from breakeven.cli.past_options import PastQuestion, past_options
from breakeven.cli.prior_options import PriorQuestion, prior_options
from breakeven.cli.worth_view import ToldWorth
from breakeven.errors import BreakevenError, InputError

if TYPE_CHECKING:
    from breakeven.cli.watch_view import Frame
    from breakeven.past.past_reading import KnownPast

_LIVE_WINDOW_S = 300


@click.command("watch", short_help="A workload's load on the curves of its past, live.")
@past_options
@prior_options
@click.option(
    "--every",
    "every_s",
    type=Number(1, 3600),
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks.",
)
@click.option("--once", is_flag=True, help="Print one frame and end; so does --json.")
@json_option
def command(every_s: float, *, once: bool, as_json: bool, **options: Any) -> None:
    """Show load, latency and acceptance of now, where they lie on the curve, and what would pay. Nothing is installed.

    The past is read once, as `breakeven history` does; it gives the curves. Figures of now are those of the last five
    minutes. What never ran is judged by other people's measurements, and marked FromPrior. Ctrl-C ends it.

    \b
      breakeven watch --prometheus http://localhost:9090 --deployment llm/chat
    """
    from rich.console import Console
    from rich.live import Live

    prior = PriorQuestion.of(options)
    watcher = _Watcher(PastQuestion.of(options), prior)
    if as_json:
        echo_result(_result(watcher.frame()))
        return
    console = Console(highlight=False)
    if once:
        console.print(watcher.look())
        return
    try:
        with Live(watcher.look(), console=console, auto_refresh=False, transient=False) as live:
            while True:
                time.sleep(every_s)
                live.update(watcher.look(), refresh=True)
    except KeyboardInterrupt:
        return


class _Watcher:
    """The past, read once, and the loads that were seen since."""

    def __init__(self, question: PastQuestion, prior: PriorQuestion) -> None:
        self._question = question
        self._loads: list[float] = []
        self._past: KnownPast | None = None
        self._worth: ToldWorth | None = None
        try:
            self._past = question.read()
            self._worth = ToldWorth.of(self._past, prior)
            self._said = f"curves: {self._past.in_words()}"
        except InputError as error:
            if error.where in {"--prometheus", "--match"}:
                # Several workloads, or none.
                raise
            # A workload of ten minutes ago has a present all the same.
            self._said = f"no curve: its past says nothing ({error.problem})"

    def look(self) -> Any:
        """The frame of now; a server that does not answer is a frame too, because the next look may find it."""
        from breakeven.cli.watch_view import drawn

        try:
            return drawn(self.frame())
        except BreakevenError as error:
            if not self._loads:
                raise
            return f"{_now()}  {error}"

    def frame(self) -> Frame:
        """The content of a frame of now.

        Raises:
            BreakevenError: no usable answer.
        """
        from breakeven.cli.watch_view import Frame
        from breakeven.past.standing import standing
        from breakeven.serving.diagnosis import diagnose
        from breakeven.serving.model_watch import ModelWatch

        asked = self._question.asked
        watch = ModelWatch.of(self._question.server.instant, asked.matchers, asked.prefix, _LIVE_WINDOW_S)
        snapshot = watch.with_events(watch.snapshot())
        seen = standing(snapshot.window, self._past, speculating=snapshot.speculating)
        self._loads.append(snapshot.window.rps)
        causes = diagnose(snapshot, None, None).findings
        named = (
            ", ".join(sorted({one.kind.fingerprint.model or "?" for one in self._past.arms}))
            if self._past
            else ""
        )
        return Frame(
            f"{named}  {_now()}".strip(),
            seen,
            snapshot.pods,
            self._loads,
            [one for one in causes if str(one.cause) not in _EXPECTED],
            self._said,
            self._worth,
        )


def _result(frame: Frame) -> Any:
    """The document of `--json`."""
    from breakeven.cli.results import WatchResult
    from breakeven.cli.watch_view import in_flight
    from breakeven.cli.worth_view import worth_document

    seen, window = frame.standing, frame.standing.window
    names = ("speedup", "speedup_ci", "break_even_rps", "break_even_ci_rps")
    return WatchResult.of(
        window,
        frame,
        running=list(map(str, seen.running)),
        inflight=in_flight(window),
        predicted_latency_s=seen.predicted_s,
        arms=[
            {
                **{
                    name: getattr(arm, name) for name in ("method", "k", "candidate", "scheduled", "adaptive")
                },
                **{name: getattr(found, name) for name in names},
                "verdict": str(found.verdict).lower(),
            }
            for arm, found in seen.arms
        ],
        calibration=worth_document(frame.worth) if frame.worth is not None else None,
        findings=[
            {"cause": one.cause, "evidence": one.evidence, "remedy": one.remedy} for one in frame.findings
        ],
        confidence=DEFAULT_CONFIDENCE,
    )


# An engine without speculation is as good a subject as one with it, and the past is the profile.
_EXPECTED = frozenset({"NotSpeculating", "NoProfile"})


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
