"""The report: one file, nothing from outside, the same bytes every time, warnings where they are seen."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.cli import root
from breakeven.cli.profile_options import read_profile
from breakeven.fitting import fit_points
from breakeven.profile import Conditions, Profile
from breakeven.readers.reading import read_sweep
from breakeven.reporting import plots, profile_page
from breakeven.reporting.lines import arm_curves, best_arm_map
from breakeven.reporting.page import ReportPage, Table, render_page, render_png
from breakeven.reporting.profile_page import Recommended, drawings, render_report, verdict
from breakeven.reporting.theme import LIGHT, drawing
from validation.adaptive_sweeps import sweeps

POINTS = Path(__file__).parents[3] / "examples" / "points.csv"


@pytest.fixture(scope="module")
def profile() -> Profile:
    return read_profile(POINTS, 0.9)


@pytest.fixture(scope="module")
def page(profile: Profile) -> str:
    return render_report(profile, "Chat", (2.0, 8.0))


@pytest.fixture
def text_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without pictures, whose words alone are tested: drawing takes a hundred times as long."""
    monkeypatch.setattr(profile_page, "drawings", lambda *_: {})


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def elements(page: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = Elements()
    parser.feed(page)
    return parser.tags


def test_nothing_is_loaded_from_outside(page: str) -> None:
    for tag, attributes in elements(page):
        assert tag not in {"script", "link", "iframe", "object", "embed", "base", "form"}
        for name in ("src", "href", "xlink:href", "action", "srcset"):
            value = attributes.get(name) or ""
            assert not value or value.startswith(("#", "data:")), (tag, name, value)
    assert not re.search(r"@import|url\((?!#)", page)


def test_identifiers_are_unique_so_that_pictures_do_not_clip_each_other(page: str) -> None:
    identifiers = [a["id"] for _, a in elements(page) if a.get("id")]
    assert len(identifiers) == len(set(identifiers)) > 100
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', page))
    assert used <= set(identifiers)


def test_the_same_profile_gives_the_same_bytes(profile: Profile, page: str) -> None:
    pictures = drawings(profile, None)
    assert list(pictures) == ["speedup", "latency", "map", "fit"]
    assert render_png(pictures["fit"]) == render_png(drawings(profile, None)["fit"])
    assert render_report(profile, "Chat", (2.0, 8.0)) == page


def test_light_and_dark_are_both_in_the_file(page: str) -> None:
    classes = [a.get("class") for tag, a in elements(page) if tag == "div"]
    assert classes.count("on-light") == classes.count("on-dark") == 8
    assert "prefers-color-scheme: dark" in page


def test_the_verdict_has_bounds_and_stands_before_the_pictures(page: str, profile: Profile) -> None:
    sentence = verdict(profile, (2.0, 8.0))
    assert re.fullmatch(
        r"eagle3/2 is 1\.\d\dx \(1\.\d+ to 1\.\d+\) as fast as no speculation at 5 rps per replica, measured side by side; "
        r"it pays until (9\.\d+|10)(\.\d)? rps \(9\.\d+ to 1[01](\.\d)?\)\.",
        sentence,
    )
    assert page.index(sentence) < page.index("<figure>")


def test_a_loss_is_called_one(profile: Profile) -> None:
    assert verdict(profile, (11.0, 13.0)).startswith("Speculation slows requests: the best arm, eagle3/2")
    assert verdict(profile, (9.9, 10.2)).startswith("Too close to decide")
    # The law converts to another acceptance what was measured.
    assert ", expected; " in verdict(
        profile, (2.0, 8.0), lambda arm: Conditions(tokens_per_step=1.5 if arm.k else None)
    )
    assert "Nothing to compare" in verdict(replace(profile, arms=profile.arms[1:]))


@pytest.mark.usefixtures("text_only")
def test_warnings_stand_before_the_parameters_each_once(profile: Profile) -> None:
    page = render_report(replace(profile, warnings=("mind the <gap>",)), "t")
    listed = page.partition("What not to believe")[2].partition("</ul>")[0]
    assert "<li>mind the &lt;gap&gt;</li>" in listed
    assert page.count("mind the") == 1
    assert page.index("What not to believe") < page.index("<h2>Parameters</h2>")


@pytest.mark.usefixtures("text_only")
def test_an_arm_without_a_usable_point_is_among_the_warnings(tmp_path: Path) -> None:
    header, *lines = csv.reader(POINTS.read_text(encoding="utf-8").splitlines())
    flag = header.index("flag")
    flagged = [[*one[:flag], "NotSteady" if one[1] == "5" else one[flag], *one[flag + 1 :]] for one in lines]
    (tmp_path / "flagged.csv").write_text("\n".join(",".join(one) for one in (header, *flagged)))
    page = render_report(read_profile(tmp_path / "flagged.csv", 0.9), "t")
    listed = page.partition("What not to believe")[2].partition("</ul>")[0]
    assert re.search(r"<li>eagle3/5: not measured \(TooFewPoints\)", listed)


@pytest.mark.usefixtures("text_only")
def test_without_warnings_there_is_no_heading_for_them(profile: Profile) -> None:
    assert "What not to believe" not in render_report(replace(profile, warnings=()), "t")


def test_every_text_is_escaped() -> None:
    bad = "<img src=x onerror=alert(1)>"
    page = render_page(
        ReportPage(
            title=bad,
            facts=[bad],
            verdict=bad,
            pictures=[],
            warnings=[bad],
            tables=[Table(bad, (bad,), ((bad,),), bad)],
            footer=bad,
        )
    )
    assert "<img" not in page
    # The title stands twice, in the head and above the facts, and a table's title names its scrolled part too.
    assert page.count("&lt;img") == 11


def test_parameters_are_there_with_units_and_bounds(page: str) -> None:
    table = page.partition("<h2>Parameters</h2>")[2].partition("</table>")[0]
    for text in (
        "C1, s",
        "C2, ms per other in flight",
        "eagle3/2",
        "0.395 [0.382,0.408]",
        "67.4 [65.1,69.8]",
    ):
        assert text in table


def test_a_report_for_other_acceptance_and_lengths_says_what_plan_says(profile: Profile) -> None:
    eagle = next(fit.arm for fit in profile.arms if fit.k == 5)
    asked = {
        NO_SPECULATION: Conditions(None, 400.0, 150.0),
        eagle: Conditions(1.6, 400.0, 150.0),
    }
    curves = arm_curves(profile, lambda arm: asked.get(arm, Conditions(None, 400.0, 150.0)))
    moved = next(one for one in curves if one.arm == eagle)
    alike = {"prompt_tokens": 400.0, "output_tokens": 150.0}
    compared = profile.compare(eagle, NO_SPECULATION, rps=0.0, conditions=Conditions(1.6, **alike))
    assert moved.speedup[0] == pytest.approx(compared.speedup)
    assert moved.break_even_rps == compared.break_even_rps
    assert not moved.measured_rps.size, "measured points hold for the measured conditions"


def test_a_profile_with_adaptive_verification_has_the_picture_of_kinds_with_its_words() -> None:
    sweep = next(one for one in sweeps() if one.gpu == "MI355X")
    profile = sweep.fitted(sweep.clients)
    assert list(drawings(profile)) == ["speedup", "latency", "kinds", "map", "fit"]
    page = render_report(profile, "Sweep")
    assert "At light load" in page
    assert re.search(r"dspark/7 is the fastest, dspark/adaptive takes \d+ % longer", page)
    assert re.search(r"At heavy load [^.]*dspark/adaptive is the fastest", page)


EAGLE_2, EAGLE_5 = Arm("eagle3", 2), Arm("eagle3", 5)


@pytest.mark.parametrize(
    ("about", "said"),
    [
        (Recommended(EAGLE_2, 4.0), "eagle3/2 is 1.5"),
        # The operator keeps an arm that is hardly slower: the page speaks of that one, and says so.
        (Recommended(EAGLE_5, 4.0), "eagle3/2 would be faster by this profile, 1.52x."),
        (
            Recommended(EAGLE_5, 12.0),
            "Speculation slows requests: the recommended arm, eagle3/5, is saturated at 12 rps",
        ),
        (
            Recommended(NO_SPECULATION, 12.0),
            "No speculation is recommended at 12 rps per replica; eagle3/2, the",
        ),
        (Recommended(EAGLE_2), "(a fifth of saturation)"),
    ],
)
def test_the_verdict_names_the_arm_of_the_operator(profile: Profile, about: Recommended, said: str) -> None:
    sentence = verdict(profile, about=about)
    assert said in sentence
    assert about.arm.name in sentence or about.arm == NO_SPECULATION


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--arm", "eagle3/9"], "expected one of none, eagle3/2, eagle3/5"),
        (["--rps", "4"], "--rps: given without --arm"),
    ],
)
def test_an_arm_that_was_not_measured_is_refused(tmp_path: Path, options: list[str], said: str) -> None:
    done = CliRunner().invoke(root, ["report", str(POINTS), "-o", str(tmp_path / "p.html"), *options])
    assert said in str(done.exception)
    assert not list(tmp_path.iterdir())


def test_every_arm_has_a_place_on_the_map_or_is_named() -> None:
    points = [*read_sweep([POINTS]).points]
    quick = [
        replace(one, schedule="1-8:5,9-:2", k=5, mean_latency_s=0.9 * one.mean_latency_s)
        for one in points
        if one.k == 2
    ]
    slow = [
        replace(one, k=9, mean_latency_s=3.0 * one.mean_latency_s, accept=()) for one in points if one.k == 5
    ]
    fitted = fit_points([*points, *quick, *slow])
    best = best_arm_map(fitted, rows=21, columns=41)
    assert best is not None
    (scheduled,) = best.leads_as_measured
    assert scheduled.name == "eagle3/schedule"
    assert best.leads_as_measured[scheduled][4], "it is the fastest at low load as measured"
    with drawing(LIGHT):
        axes = Figure().subplots()
        plots.best_arm_map(axes, best, LIGHT.strokes(best.arms), LIGHT)
        words = " ".join(text.get_text() for text in axes.texts)
    assert all(fit.arm.name in words for fit in fitted.arms), words
    assert "nowhere the fastest: eagle3/5" in words
