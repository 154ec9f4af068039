// The official openai npm client against the gateway: prints one JSON line, or throws.
import assert from "node:assert/strict";
import OpenAI from "openai";

const [baseURL, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 1 });
const messages = [{ role: "user", content: "Say something" }];
const tools = [{ type: "function", function: { name: "weather", parameters: { type: "object", properties: { city: { type: "string" } } } } }];

const chat = await client.chat.completions.create({ model: "auto", messages, max_tokens: 4 });
assert.equal(chat.usage.completion_tokens, 4);
assert.equal(chat.choices[0].finish_reason, "length");

const { response } = await client.chat.completions.create({ model: "small", messages, max_tokens: 2 }).withResponse();
assert.equal(response.headers.get("x-turnout-route"), "forced");

const stream = await client.chat.completions.create({ model: "small", messages, max_tokens: 6, stream: true, stream_options: { include_usage: true } });
let text = "", usage = null, chunks = 0;
for await (const chunk of stream) {
  chunks += 1;
  text += chunk.choices[0]?.delta.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.ok(text.length > 0);
assert.equal(usage.completion_tokens, 6);

const called = await client.chat.completions.create({ model: "small", messages, tools, tool_choice: { type: "function", function: { name: "weather" } } });
assert.equal(called.choices[0].message.tool_calls[0].function.name, "weather");

const vectors = await client.embeddings.create({ model: "embed", input: ["a", "b"] });
assert.equal(vectors.data.length, 2);
assert.equal(typeof vectors.data[0].embedding[0], "number");

const models = [];
for await (const model of client.models.list()) models.push(model.id);

await assert.rejects(client.chat.completions.create({ model: "none", messages }), (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found");
await assert.rejects(new OpenAI({ baseURL, apiKey: "sk-wrong", maxRetries: 0 }).models.list(), OpenAI.AuthenticationError);
await assert.rejects(client.chat.completions.create({ model: "small", messages, max_tokens: 2, sim_fault: "503" }), OpenAI.InternalServerError);
await assert.rejects(async () => {
  const broken = await client.chat.completions.create({ model: "small", messages, max_tokens: 30, stream: true, sim_fault: "cut:8" });
  for await (const _ of broken);
}, /broke off/);

console.log(JSON.stringify({ chunks, models: models.sort() }));
