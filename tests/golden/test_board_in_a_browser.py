"""The board in a real Chromium: no violation that axe-core knows, nothing against the policy, all by keyboard, fit for a phone."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support import expected_conditions
from selenium.webdriver.support.wait import WebDriverWait

from fakes.served_board import served_fleet

# Not in this repository: axe-core has another licence (MPL-2.0) and is needed by this test alone.
AXE = "axe-core@4.14.1"
AXE_SHA512 = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "breakeven"
CHROMIUM: str = shutil.which("chromium") or shutil.which("google-chrome") or ""
DRIVER: str = shutil.which("chromedriver") or ""
WIDE, LAPTOP, PHONE = (1440, 1000), (1280, 900), (390, 844)
SIZES = {"wide": WIDE, "laptop": LAPTOP, "phone": PHONE}
PAGES = {
    "services": "",
    "services that lose": "?show=loses&namespace=llm",
    "a service with every kind of roll": "services/llm/chat",
    "an arm that loses": "services/llm/code",
    "a roll": "services/search/rerank",
    "a recommendation": "services/llm/mail",
    "a calibration": "services/search/long",
    "a first answer": "services/tools/first",
    "a long name": "services/tools/a-service-with-a-very-long-name-of-its-own",
    "what if": "services/llm/chat?rps=30&replicas=2",
    "a refused question": "services/llm/chat?rps=many",
    "an invalid service": "services/tools/broken",
    "nothing": "services/llm/absent",
}

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="no Chromium with its driver: apt-get install chromium chromium-driver",
)


@pytest.fixture(scope="module")
def axe():
    """The script of axe-core, whose package must have the digest above."""
    archive = CACHE / f"{AXE.replace('@', '-')}.tgz"
    if not archive.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        npm = shutil.which("npm")
        done = npm and subprocess.run(
            [npm, "pack", AXE, f"--pack-destination={CACHE}"], capture_output=True, check=False, timeout=120
        )
        if not done or done.returncode:
            pytest.skip(f"no {AXE}: npm pack {AXE} --pack-destination={CACHE}")
    data = archive.read_bytes()
    assert base64.b64encode(hashlib.sha512(data).digest()).decode() == AXE_SHA512
    with tarfile.open(fileobj=io.BytesIO(data)) as files:
        return files.extractfile("package/axe.min.js").read().decode()


@pytest.fixture(scope="module")
def address():
    """A board with a fleet in which every state is there."""
    with served_fleet() as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=DRIVER))
    yield driver
    driver.quit()


def show(browser, url, size=WIDE, scheme="light"):
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    width, height = size
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE},
    )
    browser.get(url)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_axe_finds_no_violation(browser, address, axe, size, scheme):
    found = {}
    for name, path in PAGES.items():
        show(browser, address + path, size, scheme)
        browser.execute_script(axe)
        result = browser.execute_async_script("axe.run().then(arguments[0])")
        assert len(result["passes"]) >= 10, name
        found[name] = [
            (one["id"], one["help"], [node["html"][:120] for node in one["nodes"]][:3])
            for one in result["violations"]
        ]
    assert {name: violations for name, violations in found.items() if violations} == {}


def test_no_page_does_what_the_policy_forbids(browser, address):
    browser.get_log("browser")
    said = []
    for path in PAGES.values():
        show(browser, address + path)
        said += browser.get_log("browser")
        # The style came through: without it the page would be as wide as its table.
        assert browser.execute_script("return getComputedStyle(document.body).maxWidth") == "1536px"
    # The answer 404 is one that was asked for.
    assert [line for line in said if "404 (Not Found)" not in line["message"]] == []


def test_the_policy_stops_a_script_that_got_into_the_page(browser, address):
    show(browser, address)
    browser.execute_script(
        "const one = document.createElement('script'); one.textContent = 'document.title = \"taken over\"';"
        "document.body.append(one);"
    )
    assert browser.title == "Services - Breakeven"
    assert any("Content Security Policy" in line["message"] for line in browser.get_log("browser"))


OUTSIDE = """
const width = document.documentElement.clientWidth, found = [];
if (document.documentElement.scrollWidth > width) found.push('the page is wider than the screen');
for (const one of document.querySelectorAll('body *')) {
  if (one.closest('.unseen, .skip, details:not([open])') || getComputedStyle(one.closest('thead') || one).position === 'absolute') continue;
  const at = one.getBoundingClientRect(), words = one.tagName + ' ' + one.textContent.trim().slice(0, 40);
  if (at.width && (at.left < -1 || at.right > width + 1)) found.push('beside the screen: ' + words);
  if (one instanceof HTMLElement && getComputedStyle(one).display !== 'inline' && one.scrollWidth > one.clientWidth + 1)
    found.push('wider than its place: ' + words);
  if (one.localName === 'text' && parseFloat(getComputedStyle(one).fontSize) < 12) found.push('too small: ' + words);
}
return found;
"""


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_nothing_lies_beside_the_screen_or_over_its_neighbour_and_pictures_are_readable(
    browser, address, size
):
    found = {}
    for name, path in PAGES.items():
        show(browser, address + path, size)
        found[name] = browser.execute_script(OUTSIDE)
    assert {name: outside for name, outside in found.items() if outside} == {}


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_the_first_service_is_on_the_first_screen_and_needs_attention(browser, address, size):
    show(browser, address, size)
    first = browser.find_element(By.CSS_SELECTOR, ".services tbody tr:not(.group)")
    assert "llm/code" in first.text
    assert first.rect["y"] + first.rect["height"] < size[1] / 2


def test_on_a_laptop_a_service_is_one_line(browser, address):
    show(browser, address, LAPTOP)
    rows = browser.find_elements(By.CSS_SELECTOR, ".services tbody tr:not(.group)")
    heights = {row.find_element(By.TAG_NAME, "a").text: row.rect["height"] for row in rows}
    # A name without end and a break-even that names its arm take a second one.
    long = heights.pop("tools/a-service-with-a-very-long-name-of-its-own")
    named = heights.pop("llm/mail")
    assert max(heights.values()) < 45 < min(long, named)


def focused(browser):
    return browser.switch_to.active_element


def press(browser, key):
    webdriver.ActionChains(browser).send_keys(key).perform()


def follow(browser, part):
    """Press Enter and await its page, known by a part of its address: the driver answers before the page is asked for."""
    press(browser, Keys.ENTER)
    WebDriverWait(browser, 60).until(expected_conditions.url_contains(part))
    WebDriverWait(browser, 60).until(
        lambda _: browser.execute_script("return document.readyState") == "complete"
    )


def tab_to(browser, wanted):
    """Press Tab until the element that has the focus is wanted."""
    for _ in range(60):
        press(browser, Keys.TAB)
        if wanted(focused(browser)):
            return
    raise AssertionError("not reached by 60 tabs")


def test_all_is_reached_by_keyboard(browser, address):
    show(browser, address)
    press(browser, Keys.TAB)
    assert focused(browser).text == "To the content"
    assert focused(browser).rect["x"] >= 0
    tab_to(browser, lambda one: one.text == "llm/chat")
    assert focused(browser).value_of_css_property("outline-style") == "solid"
    follow(browser, "/services/llm/chat")
    tab_to(browser, lambda one: one.get_attribute("name") == "rps")
    press(browser, "30")
    follow(browser, "rps=30")
    assert browser.find_element(By.CSS_SELECTOR, "#what-if ~ table caption").text.startswith("Answer of")


def test_the_pictures_have_a_name_and_words_for_who_does_not_see_them(browser, address):
    show(browser, address + "services/llm/chat")
    pictures = browser.find_elements(By.CSS_SELECTOR, "figure > svg[role=img]")
    names = [picture.accessible_name for picture in pictures]
    assert names[0].startswith("Speedup over no speculation against load per replica")
    assert "marks the service now 1.79 at 3 rps" in names[0]
    assert names[1].startswith("Load per replica over the last 12 h")
    assert "then eagle/3" in names[1]
