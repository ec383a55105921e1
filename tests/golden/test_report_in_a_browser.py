"""The report, the demo's page and the site in a real Chromium: no violation that axe-core knows, and on a phone every letter can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from breakeven.cli.profile_options import read_profile
from breakeven.reporting.profile_page import render_report
from demo.day import MIN_GAIN, day_page
from demo.story import tell
from demo.summary import Check
from fakes.played_day import PAYS_UNTIL_A_LOAD, played_day
from golden.test_board_in_a_browser import CHROMIUM, DRIVER, PHONE, WIDE, axe, browser, show

__all__ = ["axe", "browser"]  # fixtures
ROOT = Path(__file__).parents[2]
POINTS = ROOT / "examples" / "points.csv"
SITE = ROOT / ".site"
# Of each kind of page one.
PAGES = (
    "",
    "start/",
    "install/",
    "board/",
    "api/speculativeservice/",
    "cli/plan/",
    "reasons/",
    "runbooks/SpeculationUnprofitable/",
)

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="no Chromium with its driver: apt-get install chromium chromium-driver",
)


def site_of_today():
    """Whether the site was built after what decides its look was changed."""
    home = SITE / "index.html"
    made_of = ("mkdocs.yml", "packaging/site/site_links.py", "docs/assets/site.css", "requirements/docs.lock")
    return home.exists() and home.stat().st_mtime > max((ROOT / one).stat().st_mtime for one in made_of)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    page = tmp_path_factory.mktemp("report") / "chat.html"
    page.write_text(render_report(read_profile(POINTS, 0.9), "Chat", (2.0, 8.0)), encoding="utf-8")
    return page.as_uri()


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    record, profile = played_day(PAYS_UNTIL_A_LOAD)
    told = tell(profile, MIN_GAIN)
    profiles, stories = dict.fromkeys(record.services, profile), dict.fromkeys(record.services, told)
    page = tmp_path_factory.mktemp("demo") / "demo.html"
    page.write_text(
        day_page(record, profiles, stories, [Check("a check", ok=False, detail="it failed")]),
        encoding="utf-8",
    )
    return page.as_uri()


def violations(browser, axe, url, size, scheme):
    show(browser, url, size, scheme)
    browser.execute_script(axe)
    result = browser.execute_async_script("axe.run().then(arguments[0])")
    assert len(result["passes"]) >= 10
    return [(one["id"], one["nodes"][0]["html"][:120]) for one in result["violations"]]


@pytest.mark.parametrize("page", ["report", "demo"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_axe_finds_no_violation_in_the_report_and_the_demo_s_page(browser, request, axe, page, size, scheme):
    assert violations(browser, axe, request.getfixturevalue(page), size, scheme) == []


@pytest.mark.skipif(not site_of_today(), reason="the site was not built of this theme: make docs")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_axe_finds_no_violation_in_the_site(browser, axe, size, scheme):
    found = {
        page: violations(browser, axe, (SITE / page / "index.html").as_uri(), size, scheme) for page in PAGES
    }
    assert {page: some for page, some in found.items() if some} == {}


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_the_report_fits_and_its_letters_are_as_large_as_they_were_drawn(browser, report, size):
    show(browser, report, size)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0]
    scales = browser.execute_script(
        "return [...document.querySelectorAll('figure svg')].map((one) => one.getBoundingClientRect())"
        ".map((box, i) => box.width / document.querySelectorAll('figure svg')[i].viewBox.baseVal.width)"
    )
    seen = [scale for scale in scales if scale]
    assert len(seen) == 4, "of each picture one is shown"
    assert min(seen) > 1.0, seen
