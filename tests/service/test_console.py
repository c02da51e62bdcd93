"""The console in a real browser: write, check, deploy and explain rules, by mouse and by keyboard."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.serving import Running, running
from tocsin.service.service import Options

pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
from playwright.sync_api import Page, expect, sync_playwright

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here: apt-get install chromium"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.xdist_group("browser"),
]
ARGUMENTS = (
    *("--no-sandbox", "--headless", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
PICTURES = Path(os.environ.get("TOCSIN_SCREENSHOTS", "build/screenshots"))
MISTAKE = """define  Alarm(area: string, temp: double)
from    Smoke(area=$a) and last Temp(area=$a and valeu>) within 5 min from Smoke
where   area = Smoke.area, temp = Temp.value"""
RIGHT = MISTAKE.replace("valeu>", "value>45")


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("console"), Options(delay_us=0)) as service:
        yield service


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=[*ARGUMENTS])
        yield chromium
        chromium.close()


def opened(browser: Any, web: Running, scheme: str, width: int, height: int) -> tuple[Page, list[str]]:
    """The console in a window, and what it asks for from elsewhere or complains of."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page: Page = context.new_page()
    wrong: list[str] = []
    page.on(
        "request", lambda request: wrong.append(request.url) if not request.url.startswith((web.url, "data:")) else None
    )
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(f"{web.url}/#token={web.tokens['all']}")
    expect(page.locator("#state")).to_have_text("running", timeout=20_000)
    assert "token" not in page.url
    return page, wrong


def write(page: Page, text: str) -> None:
    """Types a text into the editor in place of what is there."""
    page.locator("#editor .cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(text)


def picture(page: Page, name: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=PICTURES / f"{name}.png", full_page=page.viewport_size["width"] < 500)  # type: ignore[index]


@pytest.mark.parametrize(
    ("scheme", "width", "height"), [("light", 1280, 860), ("dark", 1280, 860), ("light", 360, 780)]
)
def test_a_rule_from_its_first_error_to_an_explained_match(
    browser: Any, web: Running, scheme: str, width: int, height: int
) -> None:
    page, wrong = opened(browser, web, scheme, width, height)
    name = f"{scheme}-{width}"
    client = web.client()
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    page.click("#tab-rules")

    write(page, MISTAKE)
    expect(page.locator("#verdict.bad")).to_contain_text("Line 2, column", timeout=20_000)
    expect(page.locator("#deploy")).to_be_disabled()
    expect(page.locator(".cm-lintRange-error")).to_be_visible(timeout=20_000)
    picture(page, f"{name}-mistake")
    write(page, RIGHT)
    expect(page.locator("#verdict.good")).to_contain_text("Alarm", timeout=20_000)

    now = time.time_ns() // 1_000
    before = [
        {"type": "Temp", "ts": now, "area": "old", "value": 47.5},
        {"type": "Smoke", "ts": now + 1, "area": "old"},
    ]
    client.publish(before)
    web.service.wait()
    page.click("#dry-run")
    expect(page.locator("#dry")).to_contain_text("match", timeout=60_000)
    expect(page.locator("#dry")).to_contain_text("area old, temp 47.5")
    page.click("#deploy")
    expect(page.locator("#rules")).to_contain_text("Alarm", timeout=60_000)
    picture(page, f"{name}-rules")

    page.click("#tab-live")
    now = time.time_ns() // 1_000
    area = f"new {name}"
    client.publish(
        [
            {"type": "Temp", "ts": now, "area": area, "value": 61.5},
            {"type": "Smoke", "ts": now + 2_000_000, "area": area},
        ]
    )
    row = page.locator("#feed li", has_text=area)
    expect(row).to_be_visible(timeout=30_000)
    row.locator("button").focus()
    page.keyboard.press("Enter")
    why = page.locator("#why")
    expect(why).to_contain_text("Why Alarm", timeout=20_000)
    expect(why.locator("svg circle")).to_have_count(2)
    expect(why.locator("table")).to_contain_text("value 61.5")
    expect(why.locator("pre")).to_contain_text("define  Alarm")
    expect(why).to_contain_text("value>45: value is 61.5")
    page.wait_for_timeout(1_200)
    picture(page, f"{name}-live")
    client.publish([{"type": "Smoke", "ts": now + 3_000_000, "area": "lonely"}])
    page.click("#whynot summary")
    page.locator("#whynot-events button", has_text="lonely").first.click(timeout=20_000)
    expect(why).to_contain_text("Why not Alarm", timeout=20_000)
    expect(why.locator("li.failed")).to_be_visible()
    picture(page, f"{name}-why-not")

    page.click("#tab-graph")
    expect(page.locator("#graph g.node")).to_have_count(7, timeout=20_000)
    for column, of in enumerate(("an event type", "a filter", "a buffer")):
        rate = page.locator(f'#graph [data-rate="{column}-0"]')
        expect(rate, of).to_contain_text("/s", timeout=20_000)
    picture(page, f"{name}-graph")
    page.click("#tab-map")
    expect(page.locator("#map")).to_contain_text("No moving query is deployed", timeout=20_000)

    page.click("#tab-rules")
    page.click("#rules li[data-id=Alarm] button")
    page.click("#remove")
    expect(page.locator("#rules-empty")).to_be_visible(timeout=20_000)
    assert client.rules() == []
    overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert overflow <= 0
    assert wrong == []
    page.context.close()


def test_the_keyboard_reaches_everything(browser: Any, web: Running) -> None:
    page, wrong = opened(browser, web, "light", 1280, 860)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "tab-live"
    for expected in ("tab-rules", "tab-graph", "tab-map", "tab-live"):
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.id") == expected
        assert page.locator(f"#view-{expected[4:]}").is_visible()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "theme"
    page.keyboard.press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert wrong == []
    page.context.close()


def test_a_moving_range_is_on_the_map(browser: Any, web: Running) -> None:
    client = web.client()
    client.deploy(
        "define Hot() from Temp(value>45)\n\ninterest Near of Hot around Car() range rectangle 200 m by 100 m", "mcep"
    )
    now = time.time_ns() // 1_000
    client.publish(
        [
            {"type": "Car", "ts": now, "x": 10.0, "y": 20.0},
            {"type": "Temp", "ts": now + 1, "x": 30.0, "y": 5.0, "value": 50},
        ]
    )
    client.publish([{"type": "Car", "ts": now + 1_000_000, "x": 40.0, "y": 20.0}])
    page, wrong = opened(browser, web, "dark", 1280, 860)
    page.click("#tab-map")
    expect(page.locator("#map rect.range")).to_be_visible(timeout=20_000)
    expect(page.locator("#map")).to_contain_text("Near")
    picture(page, "dark-1280-map")
    client.remove("Near")
    assert wrong == []
    page.context.close()


def test_without_a_token_the_console_asks_for_it(browser: Any, web: Running) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(web.url)
    expect(page.locator("#token-dialog")).to_be_visible(timeout=20_000)
    page.fill("#token", web.tokens["all"])
    page.keyboard.press("Enter")
    expect(page.locator("#state")).to_have_text("running", timeout=20_000)
    page.goto(f"{web.url}/docs")
    expect(page.locator(".opblock").first).to_be_visible(timeout=30_000)
    context.close()
