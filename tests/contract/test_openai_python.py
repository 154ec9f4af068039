"""The official openai Python client works against the gateway as it does against OpenAI."""

import openai
import pytest

from tests.support.gateway import KEY, gateway
from tests.support.sim import sim

HI = [{"role": "user", "content": "Say something"}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
    }
]


@pytest.fixture
async def client(tmp_path):
    async with sim(dialect="vllm", slots=4) as server:
        pools = {
            "small": {"url": server.url, "backend": "vllm", "model": "sim"},
            "embed": {"url": server.url, "kind": "embed", "model": "sim"},
        }
        async with (
            gateway(tmp_path, pools) as handle,
            openai.AsyncOpenAI(base_url=f"{handle.url}/v1", api_key=KEY, max_retries=2) as one,
        ):
            one.server = server
            yield one


async def test_chat(client):
    answer = await client.chat.completions.create(model="auto", messages=HI, max_tokens=4)
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens == 4


async def test_raw_headers(client):
    raw = await client.chat.completions.with_raw_response.create(model="small", messages=HI, max_tokens=2)
    assert raw.headers["x-turnout-route"] == "forced"
    assert raw.parse().choices


async def test_stream(client):
    stream = await client.chat.completions.create(
        model="small", messages=HI, max_tokens=6, stream=True, stream_options={"include_usage": True}
    )
    seen = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in seen if chunk.choices)
    assert [chunk.usage.completion_tokens for chunk in seen if chunk.usage] == [6]


async def test_tools_pass_through(client):
    answer = await client.chat.completions.create(
        model="small", messages=HI, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "weather"}}
    )
    assert client.server.bodies()[-1]["tools"] == TOOLS
    call = answer.choices[0].message.tool_calls[0]
    assert call.function.name == "weather"


async def test_completions_embeddings_models(client):
    assert (await client.completions.create(model="small", prompt="Once", max_tokens=3)).choices[0].text
    vectors = await client.embeddings.create(model="embed", input=["a", "b"])
    assert len(vectors.data) == 2 and all(isinstance(x, float) for x in vectors.data[0].embedding)
    assert {model.id async for model in client.models.list()} == {"auto", "small", "embed"}


async def test_errors(client):
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="none", messages=HI)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="sk-wrong").models.list()
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(model="small", messages="no", max_tokens=2)
    assert bad.value.param == "messages"


async def test_it_retries_a_busy_gateway_by_its_retry_after(client):
    # One refusal, then the fault is gone: the client must come back by itself.
    with pytest.raises(openai.InternalServerError):
        await client.with_options(max_retries=0).chat.completions.create(
            model="small", messages=HI, max_tokens=2, extra_body={"sim_fault": "503"}
        )
    before = len(client.server.requests)
    with pytest.raises(openai.InternalServerError):
        await client.with_options(max_retries=1).chat.completions.create(
            model="small", messages=HI, max_tokens=2, extra_body={"sim_fault": "503"}
        )
    assert len(client.server.requests) - before == 2


async def test_a_stream_that_breaks_off_raises(client):
    stream = await client.chat.completions.create(
        model="small", messages=HI, max_tokens=30, stream=True, extra_body={"sim_fault": "cut:8"}
    )
    with pytest.raises(openai.APIError, match="broke off"):
        async for _ in stream:
            pass
