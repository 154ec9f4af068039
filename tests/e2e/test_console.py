"""The console in a real Chromium: what an operator sees and does, on simulated models under real load."""

import asyncio
import json
import os
import re
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from playwright.async_api import expect

from gateway.db.repositories import replicas
from tests.support.console import SMALL, chromium, scene
from tests.support.gateway import TOKEN, gateway

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]

IMAGES = Path(__file__).parents[2] / "docs" / "images"
STYLES = Path(__file__).parents[2] / "gateway" / "console" / "static"
PROMPT = "Plan the diversion of all freight trains over the southern line for the weekend, with reasons."
WAIT = 15_000  # ms; generous, since other things may run on this machine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def busy(tmp_path_factory):
    async with scene(tmp_path_factory.mktemp("console")) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser():
    async with chromium() as made:
        yield made


@asynccontextmanager
async def opened(browser, url, *, allow=(), **options):
    """A page in a context of its own. Whatever the browser complains of fails the test, but for `allow`."""
    context = await browser.new_context(**{"viewport": {"width": 1500, "height": 940}, "base_url": url, **options})
    page = await context.new_page()
    said = []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    try:
        yield page
    finally:
        await context.close()
    assert not [one for one in said if not any(word in one for word in allow)]


@asynccontextmanager
async def signed_in(browser, url, path="/console", **options):
    async with opened(browser, url, **options) as page:
        await page.goto(f"/console?token={TOKEN}")
        await expect(page.locator("#stream")).to_have_text("live", timeout=WAIT)
        if path != "/console":
            await page.goto(path)
        yield page


@pytest_asyncio.fixture(loop_scope="module")
async def overview(browser, busy):
    async with signed_in(browser, busy.url) as page:
        yield page


@pytest_asyncio.fixture(loop_scope="module")
async def playground(browser, busy):
    async with signed_in(browser, busy.url, "/console/playground") as page:
        await expect(page.locator("#model option")).to_have_count(3, timeout=WAIT)  # auto and two pools that chat
        yield page


async def test_signing_in_and_out(browser, busy):
    async with opened(browser, busy.url, allow=["status of 401"]) as page:  # the browser's own note on a wrong token
        await page.goto("/console")
        await expect(page.locator("#token")).to_be_focused()
        await page.keyboard.type("wrong")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_contain_text("not this gateway's console token")
        await page.get_by_label("Console token").fill(TOKEN)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_label("Console token")).to_be_visible()


async def test_a_link_with_the_token_opens_and_forgets_it(browser, busy):
    async with opened(browser, busy.url) as page:
        await page.goto(f"/console?token={TOKEN}")
        await expect(page).to_have_url(re.compile(r"/console$"))
        assert TOKEN not in await page.content()
        assert await page.evaluate("document.cookie") == ""


async def test_the_overview_shows_what_there_is(overview):
    await expect(overview.locator("#pools tbody tr")).to_have_count(3, timeout=WAIT)
    small = overview.locator("#pools tbody tr.small").first
    await expect(small.locator(".tag")).to_have_text("ready")
    await expect(small.locator(".model")).to_have_text(SMALL["model"])
    await expect(small.locator(".tile")).to_have_count(3)
    await expect(overview.locator("#pools tbody tr.large .tile")).to_have_count(2)
    await expect(overview.locator("#pools tbody tr").nth(2)).to_contain_text("at zero")
    await expect(overview.locator("#answer")).to_contain_text("embed rests at zero")
    await expect(overview.locator("#latest")).to_contain_text("small 2 → 3")
    await expect(overview.locator("#events li").first).to_contain_text("8 running and 2 waiting on 8 slots.")
    await expect(overview.locator("#events li").last).to_contain_text("Built small in 90 s.")
    titles = await overview.locator(".figure").evaluate_all("all => all.map((one) => one.title)")
    assert len(titles) == 8 and all("last minute" in title for title in titles)
    units = await overview.locator(".figure small").all_text_contents()
    assert all(units), units


async def test_numbers_change_in_place_while_requests_run(overview, busy):
    row = overview.locator("#pools tbody tr.small").first
    await expect(row).to_be_visible(timeout=WAIT)
    await row.evaluate("(element) => { element.marked = true; }")
    before = {name: await overview.locator(f"#{name}").text_content() for name in ("output", "ttft")}
    finished = sum(server.state()["finished"] for server in busy.sims.values())
    async with busy.busy(0.1):
        await expect(
            overview.locator("#pools .tile em span").filter(has_text=re.compile("● [1-9]")).first
        ).to_be_visible(timeout=WAIT)
        for name, text in before.items():
            await expect(overview.locator(f"#{name}")).not_to_have_text(text, timeout=WAIT)
        await expect(overview.locator("live-track #track-decided")).to_have_text(
            re.compile(r"[1-9]\d* running"), timeout=WAIT
        )
        await expect(overview.locator("#ttft-unit")).to_have_text(re.compile(r"m?s · p95 \d"))
    assert sum(server.state()["finished"] for server in busy.sims.values()) > finished
    assert await row.evaluate("(element) => element.marked")  # the same element: hover and focus survive
    beds = [overview.locator(f".rail-bed.{tier}") for tier in ("small", "large")]
    wide, narrow = [int(await bed.get_attribute("stroke-width")) for bed in beds]
    assert wide > narrow > 4


async def test_lines_have_a_past_from_the_start(overview):
    line = overview.locator("#requests-spark path")
    await expect(line).to_have_attribute("d", re.compile(r"^M[0-2]\.\d .*L120.0 "), timeout=WAIT)
    await expect(overview.locator("#requests-spark svg")).to_have_attribute(
        "aria-label", re.compile("between .* /s and .* /s")
    )


async def test_the_drawing_has_a_table_behind_it(overview):
    rows = overview.locator("live-track table tbody tr")
    await expect(rows).to_have_count(2, timeout=WAIT)
    await expect(rows.first).to_contain_text(re.compile(r"small · .*\d+ %.*tok/s.*ms.*3 replicas"))
    box = await overview.locator("live-track .behind").bounding_box()
    assert box["width"] <= 1  # for screen readers where the drawing is readable


async def test_a_replica_that_stops_is_told_first_and_explained(browser, busy):
    why = "exit code 137: killed; next start in 2.0 s"
    for name in ("large-1", "large-2"):
        await replicas.set_state(busy.db, name, "gone", reason=why, now=1e10)
    try:
        async with signed_in(browser, busy.url) as page:
            await expect(page.locator("#answer")).to_have_text(
                re.compile("^large cannot answer: large-1: exit code 137"), timeout=WAIT
            )
            await expect(page.locator("#level")).to_have_class("dot bad")
            large = page.locator("#pools tbody tr.large")
            await expect(large.locator(".tag")).to_have_text("down")
            await expect(large.locator(".tile").first).to_contain_text("stopped")
            await expect(large.locator(".tile").first).to_have_attribute("title", re.compile(re.escape(why)))
            await expect(page.locator("#events li").first).to_contain_text("large-1 has stopped. Exit code 137: killed")
    finally:
        for name in ("large-1", "large-2"):
            await replicas.set_state(busy.db, name, "ready", reason="", now=0.0)


async def test_a_stale_stream_says_how_old_it_is_and_recovers(overview, busy, monkeypatch):
    pictures = busy.gateway.run.pictures
    look, resume = pictures._look, asyncio.Event()

    async def late():
        await resume.wait()
        return await look()

    monkeypatch.setattr(pictures, "_look", late)
    await expect(overview.locator("#stream")).to_have_text(re.compile(r"[4-9] s old"), timeout=WAIT)
    await expect(overview.locator("#stream")).to_have_class("tag warn")
    resume.set()
    await expect(overview.locator("#stream")).to_have_text("live", timeout=WAIT)


async def test_a_database_that_does_not_answer_is_said(overview, busy, monkeypatch):
    pictures = busy.gateway.run.pictures
    look = pictures._look

    async def stale():
        from gateway.control.words import verdict

        picture = msgspec.structs.replace(await look(), stale="the database is locked")
        return msgspec.structs.replace(picture, verdict=verdict(picture))

    monkeypatch.setattr(pictures, "_look", stale)
    await expect(overview.locator("#answer")).to_contain_text("The database does not answer", timeout=WAIT)
    await expect(overview.locator("#level")).to_have_class("dot warn")


async def test_who_is_signed_out_elsewhere_comes_to_the_door(browser, busy):
    async with signed_in(browser, busy.url, allow=["status of 401"]) as page:
        await page.context.clear_cookies()
        for one in tuple(busy.gateway.run.pictures._pages):
            one.show(None)  # the connection breaks
        await expect(page.get_by_label("Console token")).to_be_visible(timeout=WAIT)


async def test_an_empty_gateway_says_what_will_appear(browser, tmp_path):
    async with gateway(tmp_path, {}, aliases={}) as handle, signed_in(browser, handle.url) as page:
        await expect(page.locator("#pools-empty")).to_be_visible(timeout=WAIT)
        await expect(page.locator("#pools-empty")).to_contain_text("[pools.small]")
        await expect(page.locator("#events-empty")).to_be_visible()
        await expect(page.locator("#answer")).to_contain_text("No pool is configured")


async def test_the_playground_streams_and_explains(playground, busy):
    await playground.locator("#prompt").fill(PROMPT)
    await playground.locator("#model").select_option("small")
    await playground.locator("#tokens").fill("150")
    await playground.get_by_role("button", name="Send").click()
    await expect(playground.locator("#went")).to_have_text("streaming", timeout=WAIT)
    await expect(playground.locator("#text")).not_to_be_empty()
    await expect(playground.locator("#text")).to_have_attribute("aria-busy", "true")
    await expect(playground.get_by_role("button", name="Send")).to_be_disabled()
    await expect(playground.locator("#went")).to_have_text("cut after 150 tok", timeout=WAIT)
    text = await playground.locator("#text").text_content()
    assert len(text.split()) == 150
    facts = {
        name: await playground.locator(f"#{name}").text_content()
        for name in ("pool", "replica", "route", "ttft", "tpot", "speed", "in", "out", "hit")
    }
    assert (facts["pool"], facts["route"], facts["out"]) == ("small", "forced by its name", "150 tok")
    assert re.fullmatch(r"small-\d", facts["replica"])
    assert re.fullmatch(r"[\d.,]+ m?s", facts["ttft"]) and re.fullmatch(r"[\d.]+ ms", facts["tpot"])
    assert re.fullmatch(r"\d+ tok", facts["in"]) and facts["speed"].endswith(" tok/s") and facts["hit"].endswith(" %")
    server = busy.sims[facts["replica"]]
    assert json.loads(server.requests[-1]["body"])["messages"] == [{"role": "user", "content": PROMPT}]
    await expect(playground.locator("#text")).to_have_attribute("aria-busy", "false")


async def test_auto_says_what_it_expected(playground):
    await playground.locator("#prompt").fill("What is 2+2?")
    await playground.locator("#tokens").fill("5")
    await playground.keyboard.press("Control+Enter")
    await expect(playground.locator("#route")).to_have_text(re.compile(r"gain [+−]0\.\d\d"), timeout=WAIT)


async def test_escape_stops_the_answer_and_frees_the_server(playground, busy):
    await playground.locator("#model").select_option("large")
    await playground.locator("#tokens").fill("8000")
    await playground.locator("#prompt").focus()
    await playground.keyboard.press("Control+Enter")
    await expect(playground.locator("#went")).to_have_text("streaming", timeout=WAIT)
    assert sum(server.state()["running"] for server in busy.sims.values()) == 1
    await playground.keyboard.press("Escape")
    await expect(playground.locator("#went")).to_have_text("stopped")
    for server in busy.sims.values():
        await server.until(running=0, waiting=0)
    await busy.gateway.idle()
    await expect(playground.get_by_role("button", name="Send")).to_be_enabled()
    assert await playground.locator("#text").text_content()  # what came stays


async def test_leaving_the_page_frees_the_server_too(playground, busy):
    await playground.locator("#tokens").fill("8000")
    await playground.get_by_role("button", name="Send").click()
    await expect(playground.locator("#went")).to_have_text("streaming", timeout=WAIT)
    await playground.get_by_role("link", name="Overview").click()
    for server in busy.sims.values():
        await server.until(running=0, seconds=5)
    await busy.gateway.idle()


async def test_a_refusal_is_shown_in_its_own_words(browser, busy):
    async with signed_in(browser, busy.url, "/console/playground", allow=["status of 4"]) as page:
        await expect(page.locator("#model option")).to_have_count(3, timeout=WAIT)
        await page.locator("#model").evaluate("(field) => field.append(new Option('nosuch', 'nosuch', true, true))")
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator("#went")).to_have_text("failed", timeout=WAIT)
        await expect(page.locator("#error")).to_contain_text("nosuch")
        await expect(page.get_by_role("button", name="Send")).to_be_enabled()


async def test_a_stream_that_breaks_off_is_shown_as_such(playground, busy):
    for server in busy.sims.values():
        await order(server, "cut:5")
    try:
        await playground.locator("#model").select_option("small")
        await playground.get_by_role("button", name="Send").click()
        await expect(playground.locator("#went")).to_have_text("failed", timeout=WAIT)
        await expect(playground.locator("#error")).to_contain_text("broke off")
        assert await playground.locator("#text").text_content()
    finally:
        for server in busy.sims.values():
            await order(server, "")


async def order(server, fault):
    from engines.sim.faults import Faults

    server.machine.faults = Faults(fault)


async def test_keys(overview):
    await overview.keyboard.press("?")
    await expect(overview.locator("#help")).to_be_visible()
    await overview.keyboard.press("Escape")
    await expect(overview.locator("#help")).to_be_hidden()
    await overview.keyboard.press("g")
    await overview.keyboard.press("p")
    await expect(overview).to_have_url(re.compile("/console/playground$"))
    await expect(overview.locator("#prompt")).to_be_focused()
    await overview.keyboard.type("g o / ?")  # words, in a field
    await expect(overview.locator("#prompt")).to_have_value("g o / ?")
    await overview.locator("#prompt").blur()
    await overview.keyboard.press("/")
    await expect(overview.locator("#prompt")).to_be_focused()
    await overview.locator("#prompt").blur()
    await overview.keyboard.press("g")
    await overview.keyboard.press("o")
    await expect(overview).to_have_url(re.compile("/console$"))
    await expect(overview.locator("#stream")).to_have_text("live", timeout=WAIT)
    await overview.keyboard.press("/")
    await expect(overview).to_have_url(re.compile("/console/playground$"))


async def test_everything_can_be_reached_by_tab_and_shows_its_focus(overview):
    names = []
    for _ in range(6):
        await overview.keyboard.press("Tab")
        focused = overview.locator(":focus")
        names.append((await focused.get_attribute("aria-label") or await focused.text_content()).strip())
        assert await focused.evaluate("(element) => getComputedStyle(element).outlineStyle") == "solid", names
    assert names[0] == "Skip to the page"
    assert names[1:3] == ["Overview", "Playground"]
    assert names[3:] == ["Keys ?", "Switch between light and dark", "Sign out"]


async def test_both_themes_and_the_choice_is_kept(overview):
    ground = "() => getComputedStyle(document.body).backgroundColor"
    await overview.emulate_media(color_scheme="light")
    light = await overview.evaluate(ground)
    await overview.emulate_media(color_scheme="dark")
    dark = await overview.evaluate(ground)
    assert (light, dark) == ("rgb(246, 247, 249)", "rgb(14, 18, 24)")
    await overview.locator("#theme").click()
    assert await overview.evaluate(ground) == light
    await overview.reload()
    assert await overview.evaluate(ground) == light


async def test_nothing_moves_for_those_who_asked_for_that(overview):
    moving = "(element) => getComputedStyle(element).animationName"
    flow = overview.locator(".flow.in")
    await overview.emulate_media(reduced_motion="no-preference")
    assert await flow.evaluate(moving) == "flow"
    await overview.emulate_media(reduced_motion="reduce")
    assert await flow.evaluate(moving) == "none"
    animated = "() => document.getAnimations().length"
    assert await overview.evaluate(animated) == 0


OVER = """() => [...document.querySelectorAll("body *")].filter((one) => {
  const box = one.getBoundingClientRect();
  return box.width > 1 && box.right > innerWidth + 1 && !one.closest("svg, dialog, .behind, .skip");
}).map((one) => `${one.tagName} ${one.id} ${one.className}`)"""


@pytest.mark.parametrize("width", [420, 720, 1100, 1500])
async def test_no_width_overflows(browser, busy, width):
    async with signed_in(browser, busy.url, viewport={"width": width, "height": 900}) as page:
        for path in ("/console", "/console/playground"):
            await page.goto(path)
            if path == "/console":
                await expect(page.locator("#pools tbody tr")).to_have_count(3, timeout=WAIT)
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
            assert await page.evaluate(OVER) == []
            cut = "all => all.filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent)"
            assert await page.locator(".figure dd, .bar h1, .tag, .button, .tile em").evaluate_all(cut) == []


async def test_every_control_has_a_name(overview, playground):
    for page in (overview, playground):
        nameless = """() => [...document.querySelectorAll("button, a, input:not([hidden]), select, textarea, [role=img], dialog")].filter((one) =>
          !(one.getAttribute("aria-label") || one.getAttribute("aria-labelledby") || one.labels?.length || one.textContent.trim())).map((one) => one.outerHTML)"""
        assert await page.evaluate(nameless) == []
        assert await page.locator("html[lang], main, nav[aria-label], h1").count() == 4


def tokens():
    """The colours of both themes, by name, out of the style sheets."""
    text = (STYLES / "console.css").read_text() + (STYLES / "pieces.css").read_text()
    blocks = re.findall(r"(:root[^{]*)\{([^}]*)\}", text)
    light, dark = {}, {}
    for selector, body in blocks:
        colours = {
            name: value if len(value) == 7 else "#" + "".join(c * 2 for c in value[1:])
            for name, value in re.findall(r"--([\w-]+): (#[0-9a-f]{6}|#[0-9a-f]{3})\b", body)
        }
        (dark if "dark" in selector or "light" in selector else light).update(colours)
    return {"light": light, "dark": dark}


def luminance(colour):
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


async def test_the_tokens_of_both_themes_can_be_read():
    for theme, colours in tokens().items():
        for ink in ("ink", "soft", "faint", "small", "large", "accent", "good", "warn", "bad"):
            for ground in ("ground", "panel", "raised"):
                assert contrast(colours[ink], colours[ground]) >= 4.5, (theme, ink, ground)
        assert contrast(colours["first-ink"], colours["accent"]) >= 4.5, theme


async def test_the_pictures_of_the_docs(browser, tmp_path):
    """Written where they are missing or asked for, so that a test run leaves the tree as it was."""
    names = ("console-overview.png", "console-playground.png")
    if not os.environ.get("TURNOUT_WRITE_IMAGES") and all((IMAGES / name).exists() for name in names):
        return
    IMAGES.mkdir(parents=True, exist_ok=True)
    async with (
        scene(tmp_path) as made,
        made.busy(0.25),
        signed_in(browser, made.url, color_scheme="light", device_scale_factor=1.5) as page,
    ):
        await page.set_viewport_size({"width": 1500, "height": 850})
        await asyncio.sleep(20)
        await page.screenshot(path=IMAGES / names[0])
        await page.goto("/console/playground")
        await page.locator("#tokens").fill("80")
        await page.locator("#prompt").fill(PROMPT)
        await page.keyboard.press("Control+Enter")
        await expect(page.locator("#went")).to_have_text("cut after 80 tok", timeout=WAIT)
        await page.set_viewport_size({"width": 1500, "height": 650})
        await page.screenshot(path=IMAGES / names[1])
    assert all((IMAGES / name).stat().st_size > 20_000 for name in names)
