"""The account of a profile's predictions: measured over predicted latency of the arm in place, window by window.

One window is noise, and a window with a backlog moves a mean. So the account's figure is the median of windows that do not
overlap; its bounds follow from the spread of the windows, and at least from the number of their requests. An account is
about one arm under one profile, and begins again with either, and after a roll.

Windows of one half hour err in the same way, and an account keeps few. So a lasting account takes one window per half hour.
If a window disagrees with the profile, or with the windows before, the account takes all windows until none has disagreed
for as long as makes an account.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import NormalDist, median

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.estimate import Estimate
from breakeven.laws.latency import mean_latency_error
from breakeven.phrases import counted, duration_text, figure, fixed, through
from breakeven.planning.evaluation import Evaluations
from breakeven.planning.learned_laws import INDEPENDENT_S
from breakeven.profile import Prediction
from breakeven.profile.student_t import t_quantile
from breakeven.serving.counted_window import Window
from breakeven_operator.resources.modelstatus import MOST_WINDOWS, AccountWindow, ModelAccount, typical

_WINDOWS_THAT_LAST = 8
"""Windows of the account in timing.disagreementSeconds: shorter ones are passed over, or the account could not span it."""
_SD_PER_DEVIATION = 1.4826
"""Standard deviation of normal figures over the median of their distances from their median."""
_MEDIAN_ERROR = math.sqrt(math.pi / 2.0)
"""Standard error of a median over the standard error of a mean."""
_MOST = 1e6
_WIDEST = 20.0
"""Logarithm of the widest bounds: what lies beyond says as little."""
GAP_S = 86400.0
"""Time without any window after which an account begins again, s: traffic of the day before was other traffic."""
RUNS_DIFFER = 0.05
"""Two runs of one engine differ by as much: identical ones scatter by up to 6 % from day to day."""


@dataclass(frozen=True, slots=True)
class AccountRules:
    """How an account is kept: windows of `window_s`, a finding that must last `lasting_s`, and bounds of a two-sided `confidence`."""

    window_s: float
    lasting_s: float
    confidence: float

    @property
    def spacing_s(self) -> float:
        """Shortest time between the ends of two windows of the account, s."""
        return max(self.window_s, self.lasting_s / _WINDOWS_THAT_LAST)

    @property
    def rest_s(self) -> float:
        """Longest time between them, s."""
        return max(self.spacing_s, INDEPENDENT_S)

    def wait_s(self, windows: Sequence[AccountWindow], now: datetime) -> float:
        """Time (s) from the end of the newest window to the end of the next one, as far as past windows show."""
        newest = [one for one in windows if (now - one.time).total_seconds() < self.lasting_s]
        lasts = span_s(windows) >= self.lasting_s
        restless = not lasts or any(self.deviates(one, windows) for one in newest)
        return self.spacing_s if restless else self.rest_s

    def deviates(self, window: AccountWindow, others: Sequence[AccountWindow]) -> bool:
        """Whether a window differs from the profile, or from other windows: in latency, or in the text."""
        z = NormalDist().inv_cdf(0.5 + self.confidence / 2.0)
        allowed = math.exp(min(z * window.sampling_error, _WIDEST)) * (1.0 + RUNS_DIFFER)
        lower, upper = predicted_bounds((window,))
        usual = median(one.latency_ratio for one in others)
        least, most = max(lower, usual) / allowed, min(upper, usual) * allowed
        return bool(window.drifted) or not least <= window.latency_ratio <= most


def with_window(
    account: ModelAccount,
    evaluations: Evaluations,
    figures: Window,
    drifted: Callable[[], Iterable[str]],
    rules: AccountRules,
    now: datetime,
) -> ModelAccount:
    """The account with the present window in it, if that neither overlaps the last one nor says what others have said.

    The window's figures are settled and usable. `drifted` says what lies outside of what was calibrated; it is asked only if a
    window may be added.
    """
    kept = recent(account, now)
    since_s = (now - kept[-1].time).total_seconds() if kept else math.inf
    if since_s < rules.spacing_s:
        return account
    window = _window(account.arm, evaluations, figures, tuple(drifted()), rules, now)
    if window is None or (since_s < rules.wait_s(kept, now) and not rules.deviates(window, kept)):
        return account
    return account.replace(windows=(*kept, window)[-MOST_WINDOWS:])


def recent(account: ModelAccount | None, now: datetime) -> tuple[AccountWindow, ...]:
    """Windows that still count: those before a gap say nothing of today's traffic."""
    counted: list[AccountWindow] = []
    newer = now
    for one in reversed(account.windows if account is not None else ()):
        if one.time > now:
            continue
        if (newer - one.time).total_seconds() >= GAP_S:
            break
        counted.append(one)
        newer = one.time
    return tuple(reversed(counted))


def of_arm(account: ModelAccount | None, profile: str | None, arm: Arm | None) -> ModelAccount | None:
    """The account if it is of this arm under this profile."""
    if account is None or arm is None or (account.profile, account.arm) != (profile, arm.name):
        return None
    return account


def span_s(windows: Sequence[AccountWindow]) -> float:
    """Time (s) from the begin of the oldest window to the end of the newest; 0 without any."""
    if not windows:
        return 0.0
    return (windows[-1].time - windows[0].time).total_seconds() + windows[0].window_seconds


def latency_ratio(windows: Sequence[AccountWindow], confidence: float) -> Estimate | None:
    """Measured over predicted latency: the median; None without a window."""
    return _median([one.latency_ratio for one in windows], windows, 0.0, confidence)


def measured_speedup(windows: Sequence[AccountWindow], confidence: float) -> Estimate | None:
    """Predicted latency without speculation over the measured one; None if it has no bounds, or nothing is measured."""
    told = [(one, one.speedup, one.speedup_error) for one in windows]
    known = [(one, speedup, error) for one, speedup, error in told if speedup and error is not None]
    if not known:
        return None
    # All windows rest on one prediction: its error does not shrink with their number.
    common = median(error for _, _, error in known)
    return _median([speedup for _, speedup, _ in known], [one for one, _, _ in known], common, confidence)


def predicted_bounds(windows: Sequence[AccountWindow]) -> tuple[float, float]:
    """The prediction's own bounds over the prediction, of the middle window; an open end is 0 or infinite."""
    lower = median(one.predicted_lower or 0.0 for one in windows)
    upper = median(math.inf if one.predicted_upper is None else one.predicted_upper for one in windows)
    return lower, upper


def _median(
    values: Sequence[float], windows: Sequence[AccountWindow], common: float, confidence: float
) -> Estimate | None:
    """The median of positive values, one of each window, and bounds; all values share a relative standard error `common`."""
    if not values:
        return None
    logs, size = [math.log(value) for value in values], len(values)
    middle, z = median(logs), NormalDist().inv_cdf(0.5 + confidence / 2.0)
    root = _MEDIAN_ERROR / math.sqrt(size) if size > 1 else 1.0
    sampling = z * root * math.sqrt(sum(one.sampling_error**2 for one in windows) / size)
    scatter = _SD_PER_DEVIATION * median(abs(one - middle) for one in logs)
    seen = t_quantile(confidence, size - 1) * root * scatter if size > 1 else 0.0
    half = min(math.hypot(max(sampling, seen), z * common), _WIDEST)
    return Estimate(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def _window(
    arm: str,
    evaluations: Evaluations,
    figures: Window,
    drifted: tuple[str, ...],
    rules: AccountRules,
    now: datetime,
) -> AccountWindow | None:
    """The window that the present figures add; None if the profile has no figure for this load, or nothing was measured."""
    running = next((one for one in evaluations.arms if one.arm.name == arm), None)
    if running is None:
        return None
    predicted, observed_s, none = running.prediction, figures.latency_s, evaluations.none
    if not predicted.latency_s or not observed_s or not 0.0 < figures.requests < _MOST**2:
        return None
    ratio = _within(observed_s / predicted.latency_s)
    if ratio is None or _within(observed_s) is None:
        return None
    ends = Estimate.of(predicted.latency_s, predicted.latency_ci_s)
    lower, upper = (_ratio(end, predicted.latency_s) for end in (ends.lower, ends.upper))
    against = none.prediction if none is not None and running.arm != NO_SPECULATION else None
    return AccountWindow(
        time=now,
        window_seconds=min(figures.window_s, rules.window_s),
        requests=round(figures.requests),
        observed_seconds=observed_s,
        latency_ratio=ratio,
        sampling_error=min(
            float(mean_latency_error(running.curve.line.c1_s, observed_s, figures.requests)), _MOST
        ),
        predicted_lower=lower,
        predicted_upper=upper,
        ttft_ratio=_ratio(figures.ttft_s, predicted.ttft_s),
        tpot_ratio=_ratio(figures.tpot_s, predicted.tpot_s),
        speedup=_ratio(against.latency_s, observed_s) if against is not None else None,
        speedup_error=_relative_error(against, rules.confidence) if against is not None else None,
        drifted=drifted,
    )


def _ratio(part: float | None, whole: float | None) -> float | None:
    return _within(part / whole) if part and whole else None


def _within(value: float) -> float | None:
    """A figure that a status can hold and a logarithm can be taken of."""
    return value if 1.0 / _MOST < value < _MOST else None


def _relative_error(prediction: Prediction, confidence: float) -> float | None:
    """Relative standard error that a prediction's bounds stand for; None if one is open."""
    one = Estimate.of(prediction.latency_s, prediction.latency_ci_s)
    if not one.lower or one.upper is None:
        return None
    z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
    return _within(max(math.log(one.upper / one.lower) / (2.0 * z), 2.0 / _MOST))


def disagreement(windows: tuple[AccountWindow, ...], rules: AccountRules, predicted: str) -> str | None:
    """The sentence if the account's interval lies outside of the prediction's own; None if it does not."""
    ratio = latency_ratio(windows, rules.confidence)
    if ratio is None:
        return None
    lower, upper = predicted_bounds(windows)
    if not ratio.above(upper * (1.0 + RUNS_DIFFER)) and not ratio.below(lower / (1.0 + RUNS_DIFFER)):
        return None
    observed_s = typical(one.observed_seconds for one in windows) or 0.0
    predicted_s = typical(one.observed_seconds / one.latency_ratio for one in windows) or 0.0
    return (
        f"requests take {figure(observed_s)} s where {predicted} {figure(predicted_s)} s: {fixed(ratio.value or 0.0, 2)} times as long "
        f"({through(ratio.value or 0.0, ratio.lower, ratio.upper, 2)}, against its own bounds {lower:.2f} to {upper:.2f}), {behind(windows)}"
    )


def behind(windows: tuple[AccountWindow, ...]) -> str:
    """Requests and windows that a figure of the account rests on, as the end of a sentence."""
    requests = sum(one.requests for one in windows)
    return f"by {counted(requests, 'request')} in {counted(len(windows), 'window')} within {duration_text(span_s(windows))}"
