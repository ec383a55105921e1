"""The account of a profile's predictions, and the doubts of live traffic that follow: latencies disagree, or the text differs.

The account holds measured over predicted latency of the arm in place, window by window. One window is noise, and a window with a
backlog moves a mean. So its figure is the median of windows that do not overlap; its bounds follow from the spread of the windows,
and at least from the number of their requests. It is about one arm under one profile, and begins again with either, and after a roll.

Windows of one half hour err in the same way, and an account keeps few. So a lasting account takes one window per half hour. If a
window disagrees with the profile, or with the windows before, the account takes all windows until none has disagreed for as long
as makes an account.

A disagreement makes the profile suspect: it starts no roll until another profile is in force. If the text has drifted, the
profile's figures are converted, which is no reason to distrust them. Either asks for a calibration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import NormalDist, median
from typing import TypeAlias

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.deciding import Decision
from breakeven.errors import BreakevenError
from breakeven.estimate import Estimate
from breakeven.laws.latency import mean_latency_error
from breakeven.methods import ADAPTIVE_KEY
from breakeven.phrases import counted, duration_text, figure, fixed, through
from breakeven.planning.decision_memory import LiveAcceptance
from breakeven.planning.evaluation import Evaluations
from breakeven.planning.learned_laws import INDEPENDENT_S
from breakeven.planning.observed_load import sampling_error
from breakeven.profile import ArmFit, Conditions, Prediction, Profile
from breakeven.profile.student_t import t_quantile
from breakeven.serving.counted_window import Load
from breakeven.serving.engine_start import environment_of
from breakeven.serving.vllm_versions import profiled_context, stale_table
from breakeven_operator.case import Case, CycleFacts, Live
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.observing.questions import seen_of
from breakeven_operator.resources import SpeculativeServiceSpec
from breakeven_operator.resources.calibrationrun import Trigger
from breakeven_operator.resources.memorystatus import (
    MOST_WINDOWS,
    AccountWindow,
    MemoryStatus,
    ModelAccount,
    Suspicion,
    typical,
)
from breakeven_operator.resources.meta import ACCEPTANCE, COST_TABLE, LENGTHS, MODEL, Aspect
from breakeven_operator.resources.updatepolicy import Timing
from breakeven_operator.rolls.barred_arms import suspected, suspicion_of
from breakeven_operator.step import ProfileEntry
from breakeven_operator.workloads.target import Refusal

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
class Account:
    """The account of the arm in place: its windows that still count, oldest first, and how it is kept.

    Windows are of `window_s`, a finding must last `lasting_s` (timing.disagreementSeconds), and bounds are of a two-sided
    `confidence`. `predicts` says who predicts for which arm.
    """

    window_s: float
    lasting_s: float
    confidence: float
    windows: tuple[AccountWindow, ...] = ()
    predicts: str = ""

    @classmethod
    def of(cls, spec: SpeculativeServiceSpec, timing: Timing) -> Account:
        """The account of a service, without windows."""
        confidence = spec.update_policy.confidence_percent / 100
        return cls(spec.metrics_source.window_seconds, timing.disagreement_seconds, confidence)

    def about(self, memory: MemoryStatus, profile: str | None, now: datetime) -> Account:
        """The account with what is remembered about a profile; without windows if that is about another profile."""
        kept = memory.account
        if kept is None or kept.profile != profile:
            return self
        return replace(self, windows=recent(kept, now), predicts=f"{profile} predicts for {kept.arm}")

    @property
    def spacing_s(self) -> float:
        """Shortest time between the ends of two windows of the account, s."""
        return max(self.window_s, self.lasting_s / _WINDOWS_THAT_LAST)

    @property
    def rest_s(self) -> float:
        """Longest time between them, s."""
        return max(self.spacing_s, INDEPENDENT_S)

    def wait_s(self, now: datetime) -> float:
        """Time (s) from the end of the newest window to the end of the next one, as far as past windows show."""
        newest = [one for one in self.windows if (now - one.time).total_seconds() < self.lasting_s]
        restless = not self.lasting or any(self.deviates(one) for one in newest)
        return self.spacing_s if restless else self.rest_s

    def deviates(self, window: AccountWindow) -> bool:
        """Whether a window differs from the profile, or from the account's windows: in latency, or in the text."""
        z = NormalDist().inv_cdf(0.5 + self.confidence / 2.0)
        allowed = math.exp(min(z * window.sampling_error, _WIDEST)) * (1.0 + RUNS_DIFFER)
        lower, upper = predicted_bounds((window,))
        usual = median(one.latency_ratio for one in self.windows)
        least, most = max(lower, usual) / allowed, min(upper, usual) * allowed
        return bool(window.drifted) or not least <= window.latency_ratio <= most

    @property
    def lasting(self) -> bool:
        """Whether the windows span the time that a finding must last."""
        return span_s(self.windows) >= self.lasting_s

    @property
    def disagreement(self) -> str | None:
        """The sentence if the interval lies outside of the prediction's own for long; None if it does not, or it is too early to say."""
        ratio = latency_ratio(self.windows, self.confidence) if self.lasting else None
        if ratio is None:
            return None
        lower, upper = predicted_bounds(self.windows)
        if not ratio.above(upper * (1.0 + RUNS_DIFFER)) and not ratio.below(lower / (1.0 + RUNS_DIFFER)):
            return None
        observed_s = typical(one.observed_seconds for one in self.windows) or 0.0
        predicted_s = typical(one.observed_seconds / one.latency_ratio for one in self.windows) or 0.0
        return (
            f"requests take {figure(observed_s)} s where {self.predicts} {figure(predicted_s)} s: {fixed(ratio.value or 0.0, 2)} times "
            f"as long ({through(ratio.value or 0.0, ratio.lower, ratio.upper, 2)}, against its own bounds {lower:.2f} to {upper:.2f}), "
            f"{behind(self.windows)}"
        )

    def drifted(self, word: ClusterReason) -> bool | None:
        """Whether something lay significantly outside in every window of the account; None if it is too early to say."""
        if not self.windows or (str(word) in self.windows[-1].drifted and not self.lasting):
            return None
        return all(str(word) in one.drifted for one in self.windows) if self.lasting else False


def with_window(
    account: ModelAccount,
    evaluations: Evaluations,
    figures: Load,
    drifted: Callable[[], Iterable[str]],
    rules: Account,
    now: datetime,
) -> ModelAccount:
    """The account with the present window in it, if that neither overlaps the last one nor says what others have said.

    The window's figures are settled and usable. `drifted` says what lies outside of what was calibrated; it is asked only if a
    window may be added.
    """
    rules = replace(rules, windows=recent(account, now))
    kept = rules.windows
    since_s = (now - kept[-1].time).total_seconds() if kept else math.inf
    if since_s < rules.spacing_s:
        return account
    window = _window(account.arm, evaluations, figures, tuple(drifted()), rules, now)
    if window is None or (since_s < rules.wait_s(now) and not rules.deviates(window)):
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
    figures: Load,
    drifted: tuple[str, ...],
    rules: Account,
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


def behind(windows: tuple[AccountWindow, ...]) -> str:
    """Requests and windows that a figure of the account rests on, as the end of a sentence."""
    requests = sum(one.requests for one in windows)
    return f"by {counted(requests, 'request')} in {counted(len(windows), 'window')} within {duration_text(span_s(windows))}"


SAMPLES_DIFFER = 0.11
"""Acceptance of two samples of one text, of thousands of drafts each, differs by 5 to 11 %."""
MADE_UP_TEXT = frozenset({"synthetic text", "synthetic acceptance"})
"""Texts that nobody's users have written; see `breakeven.load_driver.sent_workload`."""


def survival(
    profile: Profile, arm: Arm, seen: Sequence[LiveAcceptance]
) -> tuple[tuple[int, float | None, float | None], ...]:
    """Live and calibrated share of drafts whose first tokens up to each position (from 1) were all accepted; None if not known.

    Empty for what drafts nothing, or lengths that follow the load.
    """
    live = next((one.survival for one in seen if one.arm == arm), ())
    fit = profile.fit_of(arm)
    calibrated = fit.survival_per_draft if fit is not None else ()
    if arm.scheduled:
        return ()
    size = min(max(len(live), len(calibrated)), arm.k)
    return tuple(
        (i + 1, live[i] if i < len(live) else None, calibrated[i] if i < len(calibrated) else None)
        for i in range(size)
    )


Drift: TypeAlias = Mapping[ClusterReason, str]
"""Clauses with a live figure significantly outside the calibrated one, and that one, by the word for it."""


def drift(profile: Profile, arm: Arm, seen: Sequence[LiveAcceptance], load: Load) -> Drift:
    """Figures of the arm in place by which its text differs significantly from the calibrated one."""
    fit = profile.fit_of(arm)
    if fit is None:
        return {}
    found = {
        ClusterReason.ACCEPTANCE_DRIFTED: _of_acceptance(profile, fit, seen, load),
        ClusterReason.LENGTHS_DRIFTED: _of_lengths(profile, fit, load),
    }
    return {word: said for word, said in found.items() if said}


def _of_acceptance(profile: Profile, fit: ArmFit, seen: Sequence[LiveAcceptance], load: Load) -> str:
    live = next((one for one in seen if one.arm == fit.arm), None)
    if live is None or fit.tokens_per_step is None or fit.arm.k == 0:
        return ""
    z = NormalDist().inv_cdf(0.5 + profile.confidence / 2.0)
    error = z * sampling_error(fit, load, seen)
    e, calibrated = live.tokens_per_step, fit.tokens_per_step
    if abs(e - calibrated) > SAMPLES_DIFFER * calibrated + error * e:
        return f"{e:.2f} tokens per step where {calibrated:.2f} were calibrated"
    # Accepted drafts make E - 1: an error of E is a larger share of E - 1.
    of_accepted = error * e / max(e - 1.0, 0.1)
    for position, now, before in survival(profile, fit.arm, seen):
        if now is not None and before is not None and abs(now - before) > SAMPLES_DIFFER + of_accepted * now:
            return f"position {position} survives in {now:.0%} of drafts where {before:.0%} were calibrated"
    return ""


def _of_lengths(profile: Profile, fit: ArmFit, load: Load) -> str:
    """Lengths beyond which the arm's prediction is an extrapolation, whatever the load."""
    try:
        strayed = profile.curve(fit.arm, Conditions(None, load.prompt_tokens, load.output_tokens)).strayed
    except BreakevenError:
        # The profile does not say at which lengths it was measured: there is nothing to be outside of.
        return ""
    if not strayed:
        return ""
    measured = fit.lengths
    pairs = (
        ("prompts", load.prompt_tokens, measured.prompt_tokens),
        ("answers", load.output_tokens, measured.output_tokens),
    )
    told = [
        f"{name} of {live:.0f} tokens where {calibrated:.0f} were calibrated"
        for name, live, calibrated in pairs
        if live is not None and calibrated and abs(live / calibrated - 1.0) > SAMPLES_DIFFER
    ]
    return " and ".join(told) or "lengths that were not calibrated"


def take_account(case: Case, decision: Decision | None) -> MemoryStatus:
    """The memory with the present window in the account, and with a suspicion if the account gives rise to one.

    While a roll is under way, and for a while after it, latencies do not belong to their loads.
    """
    settled, memory, arm = case.settled, case.memory, case.measured_arm
    rules = Account.of(case.spec, case.context.timing)
    profile, profile_name = case.profile, case.calibrated.profile_name
    account = of_arm(memory.account, profile_name, arm) if settled else None
    figures = case.live.figures
    # Those who stayed to the end had shorter answers, or better luck, than those who gave up. And a queue that moves makes
    # latencies that belong to no rate.
    speaks = figures is not None and not figures.given_up and figures.steady
    if settled and profile is not None and profile_name and decision and arm and figures and speaks:
        account = with_window(
            account or ModelAccount(arm=arm.name, profile=profile_name),
            decision.evaluations,
            figures,
            lambda: map(str, present_drift(memory, case.spec, profile, arm, case.live)),
            rules,
            case.now,
        )
    kept: dict[str, object] = {"account": account if account is not None and account.windows else None}
    if profile_name is not None and suspicion_of(memory, profile_name) is None:
        kept["suspicion"] = None
    memory = memory.replace(**kept)
    said = rules.about(memory, profile_name, case.now).disagreement
    if said is None or profile_name is None:
        return memory
    return suspected(memory, profile_name, ClusterReason.MODEL_DISAGREES, said, case.now)


def present_drift(
    memory: MemoryStatus, spec: SpeculativeServiceSpec, profile: Profile | None, arm: Arm | None, live: Live
) -> Drift:
    """Figures of the present text that lie outside the calibrated ones."""
    figures = live.figures if live.usable else None
    if profile is None or arm is None or figures is None:
        return {}
    arms = {one.name: one for one in (*spec.candidates.arms(), arm)}
    return drift(profile, arm, seen_of(memory, arms), figures)


def doubt_of(
    memory: MemoryStatus, entry: ProfileEntry, rules: Account, now: datetime
) -> tuple[Trigger | None, bool]:
    """Reason of live traffic to measure a profile again, and whether it was tested without any."""
    suspicion = suspicion_of(memory, entry.name)
    if suspicion is not None:
        words = {str(trigger): trigger for trigger in Trigger}
        return words.get(suspicion.reason, Trigger.MODEL_DISAGREES), False
    account, kept = rules.about(memory, entry.name, now), memory.account
    # The user decides what calibrations send: another sample of made-up text is accepted in the same way as the last one.
    fits = entry.profile.arms if entry.profile is not None else ()
    texts = {fit.acceptance.text for fit in fits if kept and fit.arm.name == kept.arm and fit.acceptance}
    if account.drifted(ClusterReason.ACCEPTANCE_DRIFTED) and not texts & MADE_UP_TEXT:
        return Trigger.ACCEPTANCE_DRIFTED, False
    if account.drifted(ClusterReason.LENGTHS_DRIFTED):
        return Trigger.LENGTHS_DRIFTED, False
    return None, account.lasting


STILL_ALLOWED = (
    "until another profile is in force no arm is entered on its word: no speculation, and arms whose own latency was "
    "measured here, may be, and so may any arm while requests queue up or miss an objective"
)
_DRIFTS = {ACCEPTANCE: ClusterReason.ACCEPTANCE_DRIFTED, LENGTHS: ClusterReason.LENGTHS_DRIFTED}
_RARE = frozenset({*_DRIFTS, COST_TABLE})
_UNREMARKABLE = frozenset({str(ClusterReason.MODEL_UNTESTED), str(ClusterReason.MODEL_AGREES)})
# Reasons for which nothing is known of the text and the latency of present requests.
_NO_FIGURES = frozenset(
    {
        ClusterReason.METRICS_MISSING,
        ClusterReason.METRICS_EMPTY,
        ClusterReason.METRICS_NAN,
        ClusterReason.METRICS_STALE,
        ClusterReason.METRICS_IMPOSSIBLE,
        ClusterReason.METRICS_MISLABELLED,
        ClusterReason.METRICS_PARTIAL,
    }
)


def doubt_aspects(cycle: CycleFacts) -> tuple[Aspect, ...]:
    """Doubts of live traffic about the profile in force."""
    spec, calibrated, live = cycle.service.spec, cycle.calibrated, cycle.live
    running = cycle.running.arm if cycle.running is not None else None
    memory = cycle.step.memory

    def found() -> Drift:
        return present_drift(memory, spec, calibrated.profile, running, live) if live is not None else {}

    said = aspects(memory, calibrated.profile_name, found, Account.of(spec, cycle.timing), cycle.now, live)
    # A text that never drifted needs no condition, but one that nobody can see does. A text that drifted says when it is over.
    status = cycle.service.status
    return tuple(
        one
        for one in (*said, _cost_table(cycle))
        if one.type not in _RARE or one.reason not in _UNREMARKABLE or status.condition(one.type)
    )


def _cost_table(cycle: CycleFacts) -> Aspect:
    """Whether adaptive verification's table of step costs is about contexts as long as live ones."""
    engine = cycle.workload.engine if cycle.workload is not None else None
    running = cycle.running.arm if cycle.running is not None else None
    figures = cycle.live.figures if cycle.live is not None and cycle.live.usable else None
    if engine is None or running is None or not running.adaptive or figures is None:
        return Aspect(COST_TABLE, None, str(ClusterReason.MODEL_UNTESTED), "no adaptive verification is seen")
    profiled = profiled_context({ADAPTIVE_KEY: True}, environment_of(engine.container))
    if (stale := stale_table(profiled, figures.prompt_tokens, figures.output_tokens)) is not None:
        return Aspect(COST_TABLE, False, str(ClusterReason.COST_TABLE_STALE), stale)
    return Aspect(
        COST_TABLE, True, str(ClusterReason.MODEL_AGREES), "live contexts are as long as profiled ones"
    )


def aspects(
    memory: MemoryStatus,
    profile: str | None,
    found: Callable[[], Drift],
    rules: Account,
    now: datetime,
    live: Live | None = None,
) -> tuple[Aspect, ...]:
    """The conditions about the profile: does it agree with what is measured, and is the text as it was calibrated.

    `found` says how the present text has drifted; it is asked only if some of it has.
    """
    account, blind = rules.about(memory, profile, now), _blind(live)
    return (
        _model(account, suspicion_of(memory, profile), profile, blind),
        *_drifts(account, found, profile, blind),
    )


def _blind(live: Live | None) -> Refusal | None:
    """Why present traffic says nothing about the profile; clients that give up show its acceptance all the same."""
    if live is not None and live.figures is not None and live.figures.given_up:
        gone = f"clients give up {live.figures.given_up:.0%} of the requests that began"
        return Refusal(ClusterReason.CLIENTS_GIVE_UP, f"{gone}: those that finish do not speak for all")
    if live is not None and live.reason in _NO_FIGURES:
        return Refusal(live.reason, f"not known at present: {live.message}")
    return None


def _model(
    account: Account, suspicion: Suspicion | None, profile: str | None, blind: Refusal | None
) -> Aspect:
    if suspicion is not None:
        said = f"{suspicion.message or suspicion.reason}; {STILL_ALLOWED}"
        return Aspect(MODEL, False, suspicion.reason, said)
    if blind is not None and profile is not None:
        return Aspect(MODEL, None, str(blind.reason), blind.message)
    if not account.lasting or profile is None:
        said = _too_early(account, profile)
        return Aspect(MODEL, None, str(ClusterReason.MODEL_UNTESTED), said)
    ratio = latency_ratio(account.windows, account.confidence)
    told = f"requests take {ratio.value:.2f} times what {profile} predicts" if ratio else ""
    return Aspect(MODEL, True, str(ClusterReason.MODEL_AGREES), f"{told}, {behind(account.windows)}")


def _drifts(
    account: Account, found: Callable[[], Drift], profile: str | None, blind: Refusal | None
) -> Iterator[Aspect]:
    for name, word in _DRIFTS.items():
        drifted, of_acceptance = account.drifted(word), name == ACCEPTANCE
        seen_all_the_same = of_acceptance and blind and blind.reason is ClusterReason.CLIENTS_GIVE_UP
        if drifted:
            said = found().get(word) or "outside of what was calibrated"
            cause = "; the text is another one, or the drafter was replaced in place" if of_acceptance else ""
            lasts = f"for {span_s(account.windows) / 60:.0f} minutes{cause}"
            yield Aspect(
                name, False, str(word), f"{said}, {lasts}; {profile} predicts for it with wider bounds"
            )
        elif blind is not None and profile is not None and not seen_all_the_same:
            yield Aspect(name, None, str(blind.reason), blind.message)
        elif drifted is None:
            yield Aspect(name, None, str(ClusterReason.MODEL_UNTESTED), _too_early(account, profile))
        else:
            said = "nothing lies significantly outside of what was calibrated"
            yield Aspect(name, True, str(ClusterReason.MODEL_AGREES), said)


def _too_early(account: Account, profile: str | None) -> str:
    if profile is None:
        return "no profile is in force"
    return (
        f"the arm in place was measured for {span_s(account.windows) / 60:.0f} minutes under {profile}; "
        f"timing.disagreementSeconds asks for {account.lasting_s / 60:.0f}"
    )
