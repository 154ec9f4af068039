"""The console over HTTP: who gets in, what every answer carries, and what is refused."""

import asyncio
import json
import re
from pathlib import Path

import httpx
import pytest

from gateway.console import views
from tests.support.gateway import TOKEN, gateway, listening
from tests.support.sim import sim

STATIC = Path(views.FOLDER) / "static"
CHAT = "/console/v1/chat/completions"
ASK = {"model": "small", "max_tokens": 4, "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
FILES = sorted(str(path.relative_to(STATIC)) for path in STATIC.rglob("*") if path.is_file())
TYPES = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


@pytest.fixture
async def console(tmp_path):
    """A gateway with one simulated pool, its simulator, and a client that has not signed in."""
    async with sim(dialect="llamacpp", slots=2) as server:
        pools = {
            "small": {"url": server.url, "backend": "llamacpp", "model": "sim", "slots": 2},
            "embed": {"url": server.url, "kind": "embed", "model": "sim"},
        }
        async with gateway(tmp_path, pools) as handle, httpx.AsyncClient(base_url=handle.url, timeout=10) as client:
            yield handle, server, client


@pytest.fixture
async def signed_in(console):
    handle, server, client = console
    reply = await client.post("/console/login", data={"token": TOKEN})
    assert reply.status_code == 303
    return handle, server, client


def hardened(reply):
    policy = dict(part.strip().split(" ", 1) for part in reply.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == policy["form-action"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in reply.headers["content-security-policy"]
    assert reply.headers["x-content-type-options"] == "nosniff"
    return True


async def test_a_stranger_gets_the_door_and_nothing_else(console):
    _, _, client = console
    for path in ("/console", "/console/", "/console/playground"):
        reply = await client.get(path)
        assert reply.status_code == 200
        assert (
            'action="/console/login"' in reply.text
            and "live-track" not in reply.text
            and "chat-playground" not in reply.text
        )
        assert hardened(reply) and reply.headers["cache-control"] == "no-store"
        assert "set-cookie" not in reply.headers


async def test_the_bare_address_leads_to_the_console(console):
    _, _, client = console
    reply = await client.get("/")
    assert (reply.status_code, reply.headers["location"]) == (302, "/console")
    assert hardened(reply)


async def test_a_wrong_token_is_told_so_and_the_right_one_lets_in(console):
    _, _, client = console
    for wrong in ("", "wrong", TOKEN + "x", TOKEN.upper()):
        reply = await client.post("/console/login", data={"token": wrong})
        assert reply.status_code == 401
        assert 'role="alert"' in reply.text
        assert hardened(reply) and "set-cookie" not in reply.headers
    reply = await client.post("/console/login", data={"token": f" {TOKEN}\n"})  # as it is pasted
    assert (reply.status_code, reply.headers["location"]) == (303, "/console")
    assert hardened(reply)
    page = await client.get("/console")
    assert page.status_code == 200 and "live-track" in page.text and hardened(page)


async def test_the_cookie_is_for_this_site_and_no_script(console):
    _, _, client = console
    reply = await client.post("/console/login", data={"token": TOKEN})
    cookie = reply.headers["set-cookie"]
    assert TOKEN not in cookie
    parts = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/console"} <= parts
    assert "secure" not in parts  # this one came by plain HTTP


async def test_a_token_in_the_address_leaves_it_at_once(console):
    _, _, client = console
    wrong = await client.get("/console", params={"token": "wrong"})
    assert wrong.status_code == 401 and 'role="alert"' in wrong.text
    reply = await client.get("/console", params={"token": TOKEN})
    assert (reply.status_code, reply.headers["location"]) == (303, "/console")
    assert hardened(reply) and TOKEN not in reply.text
    again = await client.get("/console", params={"token": "old"})  # signed in already: an old link does no harm
    assert (again.status_code, again.headers["location"]) == (303, "/console")


async def test_signing_out_ends_it(signed_in):
    _, _, client = signed_in
    reply = await client.post("/console/logout")
    assert reply.status_code == 303 and "max-age=0" in reply.headers["set-cookie"].lower()
    assert 'action="/console/login"' in (await client.get("/console")).text
    assert (await client.get("/console/v1/models")).status_code == 401


async def test_forms_of_other_sites_are_refused(console):
    _, _, client = console
    for origin in ("https://evil.example", "null"):
        for path, data in (("/console/login", {"token": TOKEN}), ("/console/logout", {})):
            reply = await client.post(path, data=data, headers={"origin": origin})
            assert reply.status_code == 403 and "set-cookie" not in reply.headers


async def test_without_a_token_the_door_says_how_to_get_one(tmp_path):
    async with (
        sim() as server,
        gateway(tmp_path, {"small": {"url": server.url, "model": "sim"}}, console={}) as handle,
        handle.client() as client,
    ):
        page = await client.get("/console")
        assert "No console token is set" in page.text and "<form" not in page.text
        assert (await client.post("/console/login", data={"token": ""})).status_code == 401
        assert (await client.get("/console/live")).status_code == 401


async def test_a_console_that_is_switched_off_is_not_there(tmp_path):
    async with (
        sim() as server,
        gateway(tmp_path, {"small": {"url": server.url, "model": "sim"}}, console={"enabled": False}) as handle,
        handle.client() as client,
    ):
        for path in ("/", "/console", "/console/live", "/console/static/theme.js"):
            assert (await client.get(path)).status_code == 404


async def test_what_pages_ask_for_is_refused_without_the_cookie(console):
    _, server, client = console
    for method, path in (("GET", "/console/live"), ("GET", "/console/v1/models"), ("POST", CHAT)):
        for headers in ({}, {"cookie": "turnout_console=wrong"}, {"authorization": f"Bearer {TOKEN}"}):
            reply = await client.request(method, path, json=ASK if method == "POST" else None, headers=headers)
            assert reply.status_code == 401, path
            assert "Sign in" in reply.json()["error"]["message"]
            assert hardened(reply)
    assert server.state()["seen"] == 0


async def test_the_playground_asks_as_any_client_does(signed_in):
    handle, server, client = signed_in
    reply = await client.post(CHAT, json=ASK, headers={"origin": handle.url, "authorization": "Bearer stolen"})
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert (reply.headers["x-turnout-pool"], reply.headers["x-turnout-route"]) == ("small", "forced")
    assert reply.content.endswith(b"data: [DONE]\n\n")
    sent = {name.lower(): value for name, value in server.requests[-1]["headers"].items()}
    assert not {"cookie", "authorization"} & set(sent)  # neither the session nor a key goes on
    await handle.idle()


async def test_the_playground_is_told_what_is_wrong(signed_in):
    _, _, client = signed_in
    reply = await client.post(CHAT, json={**ASK, "model": "nosuch"})
    assert reply.status_code == 404 and reply.json()["error"]["code"] == "model_not_found"
    assert (await client.get(CHAT)).status_code in (405, 415)


async def test_a_page_of_another_site_cannot_ask(signed_in):
    _, server, client = signed_in
    for headers, status in (
        ({"content-type": "application/json", "origin": "https://evil.example"}, 403),
        ({"content-type": "application/json", "origin": "null"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({}, 415),
    ):
        reply = await client.post(CHAT, content=json.dumps(ASK), headers=headers)
        assert reply.status_code == status and hardened(reply), headers
    assert server.state()["seen"] == 0


async def test_json_with_a_charset_is_json(signed_in):
    _, _, client = signed_in
    headers = {"content-type": "application/json; charset=utf-8"}
    assert (await client.post(CHAT, content=json.dumps(ASK), headers=headers)).status_code == 200


async def test_the_models_are_aliases_first_and_say_which_of_them_chat(signed_in):
    _, _, client = signed_in
    reply = await client.get("/console/v1/models")
    assert reply.json() == {
        "data": [{"id": "auto", "chat": True}, {"id": "small", "chat": True}, {"id": "embed", "chat": False}]
    }


def pages():
    return {task for task in asyncio.all_tasks() if task.get_name().startswith("console p")}


async def until(condition, seconds=3.0):
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  another task's end
            await asyncio.sleep(0.01)


async def test_the_live_stream_begins_at_once_and_leaves_no_task_behind(signed_in):
    _, _, client = signed_in
    async with client.stream("GET", "/console/live") as reply:
        assert reply.status_code == 200
        assert reply.headers["content-type"] == "text/event-stream"
        assert hardened(reply)
        lines = reply.aiter_lines()
        seen = [await asyncio.wait_for(anext(lines), 3) for _ in range(5)]
        assert pages()
    assert (seen[0], seen[3]) == ("event: history", "event: overview")
    picture = json.loads(seen[4].removeprefix("data: "))
    assert [(pool["name"], pool["status"]) for pool in picture["pools"]] == [("small", "ready"), ("embed", "ready")]
    assert picture["verdict"]["level"] == "good" and picture["stale"] == ""
    await until(lambda: not pages())  # the browser has left


async def test_the_live_stream_takes_get_alone(signed_in):
    _, _, client = signed_in
    assert (await client.post("/console/live")).status_code == 405


async def test_open_pages_do_not_hold_up_the_gateway(signed_in):
    handle, _, client = signed_in
    async with client.stream("GET", "/console/live") as reply:
        body = reply.aiter_raw()
        await anext(body)
        handle.run.pictures.end()
        async with asyncio.timeout(3):
            async for _ in body:
                pass  # the stream has an end
    await until(lambda: not pages())


async def test_a_stream_that_a_page_drops_frees_the_server(signed_in):
    handle, server, client = signed_in
    long = {**ASK, "max_tokens": 4000}
    async with client.stream("POST", CHAT, json=long) as reply:
        await anext(reply.aiter_raw())
        assert server.state()["running"] == 1
    await server.until(running=0)
    await handle.idle()


async def test_static_files_are_typed_and_hardened(console):
    _, _, client = console
    for name in FILES:
        reply = await client.get(f"/console/static/{name}")
        assert reply.status_code == 200, name
        assert reply.headers["content-type"].split(";")[0] in (TYPES[name.rpartition(".")[2]], "application/javascript")
        assert reply.headers["cache-control"] == "no-cache"
        assert reply.content == (STATIC / name).read_bytes()
        assert hardened(reply)


NOT_THERE = (
    "/console/static/",
    "/console/static/nosuch.js",
    "/console/static/elements",
    "/console/static/../views.py",
    "/console/static/..%2fviews.py",
    "/console/static/%2e%2e/views.py",
    "/console/static/elements/..%2f..%2f..%2fsession.py",
    "/console/static//etc/passwd",
    "/console/nowhere",
)


async def test_nothing_else_is_served(console):
    handle, _, _ = console
    host, port = handle.url.removeprefix("http://").split(":")
    for path in NOT_THERE:
        reader, writer = await asyncio.open_connection(host, int(port))  # a client would tidy the path
        writer.write(f"GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert answer.split()[1] == b"404", answer
        assert b"import" not in answer and b"root:" not in answer


def test_pages_hold_no_inline_script_or_style():
    for path in (views.FOLDER / "templates").iterdir():
        text = path.read_text()
        assert not re.search(r"\sstyle=|<style|\son[a-z]+=|javascript:", text), path.name
        assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text)), path.name


def test_scripts_write_no_markup_and_are_small():
    scripts = [STATIC / name for name in FILES if name.endswith(".js")]
    assert sum(path.stat().st_size for path in scripts) < 40_000
    for path in scripts:
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", path.read_text()
        ), path.name
        assert not re.search(r"https?://(?!www\.w3\.org/)", path.read_text()), path.name


async def test_a_cookie_that_came_by_tls_stays_on_tls(console):
    handle, _, _ = console
    app = views_app(handle)

    async def tls(scope, receive, send):
        await app({**scope, "scheme": "https"}, receive, send)

    async with listening(tls) as url, httpx.AsyncClient(base_url=url) as client:
        reply = await client.post("/console/login", data={"token": TOKEN})
    assert "secure" in reply.headers["set-cookie"].lower()


def views_app(handle):
    from gateway.app import create_app

    return create_app(handle.run)


async def test_the_schema_is_a_document_and_no_page_that_loads_from_elsewhere(console):
    _, _, client = console
    reply = await client.get("/schema/openapi.json")
    assert reply.status_code == 200
    assert "/v1/models" in reply.json()["paths"]
    for path in ("/schema", "/schema/swagger", "/schema/redoc", "/schema/elements", "/schema/rapidoc"):
        reply = await client.get(path)
        assert "<script" not in reply.text and "<link" not in reply.text, path
