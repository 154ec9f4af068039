"""The official openai npm client works against the gateway as it does against OpenAI."""

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest

from tests.support.gateway import KEY, gateway
from tests.support.sim import sim

FOLDER = Path(__file__).parent / "node"


async def run(*argv):
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=FOLDER, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await asyncio.wait_for(process.communicate(), 50)
    return process.returncode, out.decode()


@pytest.mark.timeout(120)
async def test_the_npm_client(tmp_path):
    if shutil.which("npm") is None:
        if os.environ.get("TURNOUT_REQUIRE_ALL"):
            pytest.fail("node and npm are needed here")
        pytest.skip("needs node and npm")
    if not (FOLDER / "node_modules" / "openai" / "package.json").exists():
        code, out = await run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
        assert code == 0, out
    async with sim(dialect="vllm", slots=4) as server:
        pools = {
            "small": {"url": server.url, "backend": "vllm", "model": "sim"},
            "embed": {"url": server.url, "kind": "embed", "model": "sim"},
        }
        async with gateway(tmp_path, pools) as handle:
            code, out = await run("node", "openai.mjs", f"{handle.url}/v1", KEY)
            bodies = server.bodies()
    assert code == 0, out
    told = json.loads(out.splitlines()[-1])
    assert told["models"] == ["auto", "embed", "small"] and told["chunks"] > 2
    assert sum(body.get("sim_fault") == "503" for body in bodies) == 2  # it came back once, by itself
