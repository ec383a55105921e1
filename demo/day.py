"""The default story: a day of load on two services, one that is rolled and one that is only advised."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as TerminalTable

from breakeven.phrases import spoken
from breakeven.profile import Profile
from breakeven.reporting.page import Picture, ReportPage, Table, render_page, render_png
from breakeven.reporting.profile_page import page_title, render_report
from breakeven_operator.cluster_reasons import ClusterReason
from demo import installation
from demo.director import StoryError
from demo.performance import RESULTS, Casting, Scene, perform, what_to_try
from demo.photographs import photograph
from demo.picture import draw
from demo.record import Record, Sample
from demo.story import Phase, Story, tell
from demo.summary import (
    ANSWER_HEAD,
    PHASE_HEAD,
    ROLL_HEAD,
    Check,
    answer_checks,
    answer_rows,
    first_row,
    judge,
    phase_rows,
    roll_rows,
    tell_checks,
)
from localcluster import LocalCluster

# Many times what a quiet machine takes: what happens is not waited for any longer.
_PHASE_TIMEOUT_S = 240.0
_MEASURE_S = 10.0
_AWAITED = str(ClusterReason.AWAITS_ROLLOUT)
MIN_GAIN = 0.05
_CAST = (
    Casting("chat", "A100", "RollingUpdate", replicas=2, product="NVIDIA-A100-SXM4-80GB"),
    Casting("code", "H100", "Recommend", 1, seed=2),
)


def play(costs: Path, console: Console, *, keep: bool) -> list[Check]:
    """Play it, and write what was seen; whether each promise was kept."""
    started = time.time()
    performance = perform(costs, console, _CAST, _installed, _acts, keep=keep)
    stories, profiles, owners = performance.told
    checks = [
        first_row(performance.record.services["chat"]),
        *answer_checks(profiles),
        *judge(performance.record, stories, performance.writes, performance.failures),
        *owners,
    ]
    _tell(console, performance.record, profiles, stories, checks)
    console.print(f"took {time.time() - started:.0f} s")
    if keep:
        what_to_try(console, performance.cluster)
    return checks


def _installed(cluster: LocalCluster) -> str:
    installation.apply_examples(cluster)
    return "two Deployments and two SpeculativeServices applied"


async def _acts(scene: Scene) -> tuple[dict[str, Story], dict[str, Profile], list[Check]]:
    """Calibration, then the three loads, then a rollout of the owner's own; what came of that one."""
    director, view = scene.director, scene.view
    profiles = await scene.measured("on pods of their own, users already asking a little")
    stories = {name: tell(profile, MIN_GAIN) for name, profile in profiles.items()}
    for name, story in stories.items():
        view.step(f"measured: {name}: {story.sentence}")
    for name, arm, word in answer_rows(profiles):
        view.step(f"answers: {name}: {arm}: {word}")
    for number in range(3):
        phases = {name: story.phases[number] for name, story in stories.items()}
        loads = ", ".join(f"{name} {phase.rps:.1f} rps" for name, phase in phases.items())
        view.step(f"{phases['chat'].name} load: {loads} per replica")
        await director.play(
            phases,
            timeout_s=_PHASE_TIMEOUT_S,
            measure_s=_MEASURE_S,
        )
        if number:
            # At high load the alert needs attention; at low load again the arm pays, and its rolls are behind it.
            await scene.photographed("board" if number == 1 else "service")
    high = stories["chat"].phases[1]
    # Where one arm is right at all loads nothing waits for the owner.
    return stories, profiles, await owners_rollout(scene, high) if stories["chat"].switches else []


def awaited_s(samples: Sequence[Sample]) -> float:
    """Time (s) for which a service has awaited a rollout; 0 if it does not now.

    A restart takes what is wanted at that moment: while a window still holds another load, that may be the old arm once more.
    """
    others = (one.at_s for one in samples if not one.reason.startswith(_AWAITED))
    return samples[-1].at_s - max(others, default=samples[-1].at_s)


async def owners_rollout(scene: Scene, phase: Phase) -> list[Check]:
    """In mode NextRollout at a load of another arm: nothing restarts for that arm, and a restart by a person takes it."""
    player, target = scene.players["chat"], "chat-vllm"
    samples = player.record.samples
    await asyncio.to_thread(installation.set_mode, scene.cluster, "chat", "NextRollout")
    scene.view.step(
        f"chat: mode NextRollout, and {phase.rps:.1f} rps per replica: the arm waits for its owner's next rollout"
    )
    player.traffic.set_rate(phase.rps * player.replicas)
    began_s, before = time.time(), samples[-1].arm
    try:
        await scene.director.until(
            "chat awaits a rollout", lambda: awaited_s(samples) >= installation.WINDOW_S, _PHASE_TIMEOUT_S
        )
        ran, asked_s = samples[-1].arm, time.time()
        scene.view.step(f"a person restarts it: kubectl rollout restart deployment {target}")
        await asyncio.to_thread(installation.restart, scene.cluster, target)
        await scene.director.until(
            "its owner's rollout takes the arm", lambda: samples[-1].arm in phase.acceptable, _PHASE_TIMEOUT_S
        )
        took_s = time.time() - asked_s
        # For the board's pictures: a pod that is just Ready has no figures yet.
        await scene.director.until(
            "it has figures", lambda: samples[-1].speedup not in {"", "-"}, _PHASE_TIMEOUT_S
        )
    except StoryError as missed:
        return [
            Check(
                "chat: a person's own rollout takes the arm",
                ok=False,
                detail=f"{missed}; {samples[-1].reason}",
            )
        ]
    return [
        Check(
            "chat: nothing restarts in mode NextRollout",
            ok=ran == before,
            detail=f"{spoken(ran)} still ran, {_AWAITED} after {asked_s - began_s:.0f} s",
        ),
        Check(
            "chat: a person's own rollout takes the arm",
            ok=True,
            detail=f"{spoken(samples[-1].arm)} ran {took_s:.0f} s after the restart",
        ),
    ]


def _tell(
    console: Console,
    record: Record,
    profiles: Mapping[str, Profile],
    stories: Mapping[str, Story],
    checks: Sequence[Check],
) -> None:
    rows = phase_rows(record)
    summary = TerminalTable(title="What happened", title_justify="left")
    for head in PHASE_HEAD:
        summary.add_column(head)
    for row in rows:
        summary.add_row(*row)
    console.print(summary)
    answers = TerminalTable(title="Answers beside those of no speculation", title_justify="left")
    for head in ANSWER_HEAD:
        answers.add_column(head)
    for row in answer_rows(profiles):
        answers.add_row(*row)
    console.print(answers)
    if rolls := roll_rows(record):
        told = TerminalTable(title="Promise against measurement", title_justify="left")
        for head in ROLL_HEAD:
            told.add_column(head)
        for row in rolls:
            told.add_row(*row)
        console.print(told)
    short = TerminalTable(title="Shortened for the demo", title_justify="left")
    for head in ("setting", "production", "here"):
        short.add_column(head)
    for row in record.shortened:
        short.add_row(*row)
    console.print(short)
    tell_checks(console, checks)
    png, page, data = RESULTS / "demo.png", RESULTS / "demo.html", RESULTS / "checks.json"
    png.write_bytes(render_png(lambda theme: draw(record, profiles, theme), dots_per_inch=120))
    page.write_text(day_page(record, profiles, stories, checks))
    low, high, _ = stories["chat"].phases
    (RESULTS / "report.html").write_text(
        render_report(profiles["chat"], page_title(profiles["chat"]), (low.rps, high.rps))
    )
    data.write_text(json.dumps([{"what": c.what, "ok": c.ok, "detail": c.detail} for c in checks], indent=2))
    console.print(f"picture: {os.path.relpath(png)}   page: {os.path.relpath(page)}", markup=False)
    console.print(
        photograph(f"{RESULTS.as_uri()}/", {"demo": "demo.html", "report": "report.html"}, RESULTS),
        markup=False,
    )


def day_page(
    record: Record, profiles: Mapping[str, Profile], stories: Mapping[str, Story], checks: Sequence[Check]
) -> str:
    """The page of a day: what was measured, what happened, and what was checked."""
    failed = [f"{check.what}: {check.detail}" for check in checks if not check.ok]
    return render_page(
        ReportPage(
            title="Breakeven demo: a simulated GPU fleet through a day of load",
            facts=[f"{service.name}: {service.gpu}, {service.mode}" for service in record.services.values()],
            verdict="; ".join(f"{name}: {story.sentence}" for name, story in stories.items()),
            pictures=[
                Picture(
                    lambda theme: draw(record, profiles, theme),
                    "Above: what calibration measured (points), the fitted law with its bounds, and the break-even; the dashed "
                    "lines are the loads of this run. Below: the run, and of each roll what it promised and what was measured.",
                    first=True,
                )
            ],
            warnings=failed,
            tables=[
                Table("What happened", PHASE_HEAD, phase_rows(record)),
                Table("Answers beside those of no speculation", ANSWER_HEAD, answer_rows(profiles)),
                Table("Promise against measurement", ROLL_HEAD, roll_rows(record)),
                Table(
                    "Checks",
                    ("check", "held", "detail"),
                    [(c.what, "ok" if c.ok else "FAILED", c.detail) for c in checks],
                ),
                Table("Shortened for the demo", ("setting", "production", "here"), record.shortened),
                Table(
                    "Events",
                    ("seconds", "object", "reason", "message"),
                    [
                        (f"{e.at_s - record.started_s:.0f}", e.service, e.reason, e.message)
                        for e in record.events
                    ],
                ),
            ],
            footer="The engine is simulated; control plane, operator, Prometheus and Helm are real. Loads and expectations come from the measured profiles.",
        )
    )
