"""A gateway as its operators know it, for the console's tests: pools of simulated servers, rows, load, a browser."""

import asyncio
import json
import math
import os
import shutil
import time
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import pytest

from backends.types import Load
from gateway.db.engine import open_database
from gateway.db.repositories import decisions, replicas
from gateway.db.rows import BuildRow, ReplicaRow, ScaleDecision
from tests.support.gateway import gateway
from tests.support.sim import sim

SMALL = {"model": "Llama-3.2-3B-Instruct-Q4_0", "decode_rate": 110.0, "prefill_rate": 9000.0, "slots": 4}
SEED = 41  # of the simulated words: no signs outside common fonts in the picture of the playground
LARGE = {"model": "Qwen3-30B-A3B-FP8", "decode_rate": 45.0, "prefill_rate": 2500.0, "slots": 4}
MANUALS = tuple(
    f"You are the assistant of the {office}. Answer briefly and name the trains you mean. " * 6
    for office in ("timetable office", "lost property office", "freight desk", "track works desk", "ticket shop")
)
BOARD = json.dumps([{"train": 1700 + n, "to": "Chur", "platform": n % 9, "late": n % 4} for n in range(12)], indent=4)
QUESTIONS = (
    ("small", "When does the next train to Chur leave?"),
    ("small", "Is train 1723 late?"),
    ("large", "Prove that no two of these eleven trains can ever meet on the single track, step by step."),
    ("small", "Which platform for the 9:14?"),
    ("small", "Say it in French."),
    ("large", "Plan the diversion of all freight trains over the southern line for the weekend, with reasons."),
    ("small", "Who has found a red umbrella?"),
)


class Scene(msgspec.Struct):
    """`sims` by replica id."""

    gateway: object
    sims: dict
    db: object

    @property
    def url(self):
        return self.gateway.url

    async def probe(self):
        """What the control loop would do once a second: write down what each server says of itself."""
        while True:
            loads = {}
            for name, server in self.sims.items():
                state = server.state()
                held = state["running"] / 4 * 0.6 + min(0.3, state["seen"] / 200)
                loads[name] = Load(state["running"], state["waiting"], min(0.97, held))
            await replicas.update_load(self.db, loads)
            await replicas.beat(self.db, time.time())
            await asyncio.sleep(0.5)

    async def load(self, pause=0.35):
        """People who ask, now this pool and now that, until cancelled."""
        async with self.gateway.client() as client, asyncio.TaskGroup() as asking:
            turn = 0
            while True:
                pool, question = QUESTIONS[turn % len(QUESTIONS)]
                asking.create_task(self._ask(client, pool, f"{question} ({turn})", 20 + turn * 7 % 60))
                turn += 1
                await asyncio.sleep(pause)

    async def _ask(self, client, pool, question, tokens):
        manual = MANUALS[tokens % len(MANUALS)]
        call = {"id": "c1", "type": "function", "function": {"name": "board", "arguments": "{}"}}
        messages = [
            {"role": "system", "content": manual},
            {"role": "user", "content": question},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": BOARD},
        ]
        body = {"model": pool, "max_tokens": tokens, "stream": True, "messages": messages}
        async with client.stream("POST", "/v1/chat/completions", json=body) as reply:
            async for _ in reply.aiter_raw():
                pass

    @asynccontextmanager
    async def busy(self, pause=0.35):
        """Load for the length of the block."""
        async with meanwhile(self.load(pause)):
            yield


def remember(window, now):
    """Four busy minutes before now, so that the lines of a page have a past."""
    from telemetry.record import RequestRecord

    window._started = now - 300
    for age in range(290, 25, -1):
        wave = 1 + 0.5 * math.sin(age / 23) + 0.2 * math.sin(age / 7)
        for number in range(round(2.2 * wave)):
            large = (age + number) % 3 == 0
            record = RequestRecord(
                id="",
                at=now - age,
                operation="chat",
                caller="tester",
                model="auto",
                pool="large" if large else "small",
                prompt_bytes=3000,
                sent_bytes=2600,
                prompt_tokens=650,
                completion_tokens=45 + age % 30,
                prefix_hit=min(0.6, 0.3 + 0.1 * wave),
                ttft=(0.105 if large else 0.048) * (0.8 + 0.2 * wave),
                tpot=(0.022 if large else 0.0092) * (0.9 + 0.1 * wave),
            )
            window.request(record, now - age)


@asynccontextmanager
async def scene(data):
    """Two chat pools, small with three replicas and large with two, and one for embeddings that rests at zero."""
    async with AsyncExitStack() as stack:
        sims = {}
        for pool, options, many, dialect in (("small", SMALL, 3, "llamacpp"), ("large", LARGE, 2, "vllm")):
            for number in range(1, many + 1):
                server = await stack.enter_async_context(sim(dialect=dialect, seed=SEED, **options))
                sims[f"{pool}-{number}"] = server
        pools = {
            "small": {"simulated": {}, "backend": "llamacpp", "slots": 4, "context": 32768, "maximum": 4},
            "large": {"simulated": {}, "backend": "vllm", "tier": "large", "slots": 4, "context": 32768, "maximum": 3},
            "embed": {"simulated": {}, "kind": "embed", "minimum": 0},
        }
        handle = await stack.enter_async_context(gateway(data, pools))
        db = await stack.enter_async_context(open_database(handle.database_url))
        await told(db, sims)
        remember(handle.run.telemetry.window, time.time())
        made = Scene(handle, sims, db)
        await stack.enter_async_context(meanwhile(made.probe()))
        yield made


@asynccontextmanager
async def meanwhile(work):
    """The work, for the length of the block."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def told(db, sims):
    """Rows as a control loop and a worker would have written them."""
    now = time.time()
    for name, server in sims.items():
        pool = name.partition("-")[0]
        model = (SMALL if pool == "small" else LARGE)["model"]
        row = ReplicaRow(
            id=name,
            pool=pool,
            url=server.url,
            served_model=model,
            incarnation="1",
            slots=4,
            state="ready",
            changed_at=now - 900,
        )
        await replicas.put(db, row)
    changes = (
        (now - 2900, "embed", 1, 0, "no request for 300 s"),
        (now - 1500, "large", 1, 2, "4 running and 3 waiting on 4 slots"),
        (now - 140, "small", 2, 3, "8 running and 2 waiting on 8 slots"),
    )
    for at, pool, before, after, reason in changes:
        await decisions.add(db, ScaleDecision(at=at, pool=pool, before=before, after=after, reason=reason))
    await build(
        db,
        digest="9f3c0a",
        recipe={"engine": "llamacpp", "source": "llama-3.2-3b-instruct", "quantization": "q4_0"},
        pool="small",
        state="done",
        message="done",
        queued_at=now - 4300,
        started_at=now - 4290,
        ended_at=now - 4200,
        progress=1.0,
    )


async def build(db, **values):
    from gateway.db.models import Builds
    from gateway.db.repositories.upsert import upsert

    row = msgspec.structs.asdict(BuildRow(**values))
    await db.write(lambda connection: upsert(connection, Builds, [row], ["digest"]))


ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
)


@asynccontextmanager
async def chromium():
    """A real browser; where there is none the test is skipped, or fails if TURNOUT_REQUIRE_ALL says so."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        if os.environ.get("TURNOUT_REQUIRE_ALL"):
            pytest.fail("there is no Chromium on the PATH")
        pytest.skip("there is no Chromium on the PATH")
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            await browser.close()
