// The playground: one chat request through the gateway, streamed, with what it took and why it went there.
import { percent, timed } from "../numbers.js";
import { make, put } from "../dom.js";

const CHAT = "/console/v1/chat/completions";

// Server-sent events from a body, by blank lines; a character cut in two by the network is put together again.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    const parts = (rest + (value ?? "")).split(/\r\n\r\n|\n\n|\r\r/);
    rest = done ? "" : parts.pop();
    for (const part of parts) {
      const data = part.split(/\r\n|\n|\r/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
    if (done) return;
  }
}

class Playground extends HTMLElement {
  #stop = null;
  connectedCallback() {
    this.querySelector("form").addEventListener("submit", (event) => { event.preventDefault(); this.ask(); });
    this.at("stop").addEventListener("click", () => this.#stop?.abort());
    this.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.ctrlKey) this.ask();
      if (event.key === "Escape") this.#stop?.abort();
    });
    this.models();
  }
  at(id) { return this.querySelector(`#${id}`); }
  async models() {
    const reply = await fetch("/console/v1/models");
    if (!reply.ok) return;
    const { data } = await reply.json();
    this.at("model").replaceChildren(...data.filter((model) => model.chat).map((model) => make("option", {}, model.id)));
  }
  async ask() {
    const prompt = this.at("prompt").value.trim() || this.at("prompt").placeholder;
    this.#stop?.abort();
    const stop = this.#stop = new AbortController();
    this.clear();
    this.busy(true);
    try {
      await this.stream(prompt, stop.signal);
    } catch (error) {
      this.say(error.name === "AbortError" ? "stopped" : "failed", error.name === "AbortError" ? "warn" : "bad");
      if (error.name !== "AbortError") this.show(error.message);
    } finally {
      if (this.#stop === stop) this.busy(false);
    }
  }
  async stream(prompt, signal) {
    const headers = { "content-type": "application/json" };
    if (this.at("compress").value) headers["x-turnout-compress"] = this.at("compress").value;
    const body = { model: this.at("model").value, stream: true, stream_options: { include_usage: true }, max_tokens: Number(this.at("tokens").value), messages: [{ role: "user", content: prompt }] };
    const began = performance.now();
    const reply = await fetch(CHAT, { method: "POST", headers, body: JSON.stringify(body), signal });
    this.told(reply.headers);
    if (!reply.ok) throw new Error((await reply.json()).error?.message ?? `The gateway answered ${reply.status}.`);
    let first = null, last = null, text = "", usage = null;
    for await (const chunk of events(reply.body)) {
      if (chunk.error) throw new Error(chunk.error.message);
      usage = chunk.usage ?? usage;
      const delta = chunk.choices?.[0]?.delta, piece = (delta?.reasoning_content ?? "") + (delta?.content ?? "");
      if (!piece) continue;
      last = performance.now();
      first ??= last;
      this.show(text += piece);
      put(this.at("ttft"), timed((first - began) / 1000));
    }
    this.took(usage, first, last);
    this.say("done", "good");
  }
  told(headers) {
    const of = (name) => headers.get(`x-turnout-${name}`) ?? "–";
    for (const [id, name] of [["pool", "pool"], ["replica", "replica"], ["route", "route"], ["shorter", "compression"], ["request", "request-id"]]) put(this.at(id), of(name));
    put(this.at("hit"), of("prefix-hit") === "–" ? "–" : `${percent(Number(of("prefix-hit")))} %`);
  }
  took(usage, first, last) {
    if (!usage) return;
    put(this.at("in"), `${usage.prompt_tokens} tok`);
    put(this.at("out"), `${usage.completion_tokens} tok`);
    put(this.at("cached"), usage.prompt_tokens_details?.cached_tokens == null ? "–" : `${usage.prompt_tokens_details.cached_tokens} tok`);
    if (usage.completion_tokens > 1) put(this.at("tpot"), timed((last - first) / 1000 / (usage.completion_tokens - 1)));
  }
  show(text) { this.at("empty").hidden = true; this.at("text").hidden = false; put(this.at("text"), text); }
  say(text, kind) { const tag = this.at("went"); tag.hidden = false; tag.className = `tag ${kind}`; put(tag, text); }
  clear() { for (const cell of this.querySelectorAll(".facts td.num")) put(cell, "–"); this.show(""); this.say("waiting", ""); }
  busy(on) { this.at("stop").disabled = !on; this.at("send").disabled = on; }
}
customElements.define("chat-playground", Playground);
