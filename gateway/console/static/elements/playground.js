// The playground: one chat request through the gateway, streamed, with what it took and why it went there.
import { make, put, set } from "../dom.js";
import { count, percent, timed } from "../numbers.js";

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

const ROUTES = { forced: "forced by its name", rule: "the only one that could" };
const routed = (route) => ROUTES[route] ?? route.replace(/^gain=/, "gain ").replace("-", "−");
const shortened = (words) => words === "off" ? "none" : words.includes("->") ? `${words.replace("->", " → ")} tok` : words;

class Playground extends HTMLElement {
  #stop = null;
  connectedCallback() {
    this.querySelector("form").addEventListener("submit", (event) => { event.preventDefault(); this.ask(); });
    this.at("stop").addEventListener("click", () => this.#stop?.abort());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.querySelector("form").requestSubmit();
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) this.#stop?.abort();
    });
    this.models();
  }
  at(id) { return this.querySelector(`#${id}`); }
  async models() {
    const reply = await fetch("/console/v1/models").catch(() => null);
    if (!reply?.ok) return;
    const { data } = await reply.json();
    this.at("model").replaceChildren(...data.filter((model) => model.chat).map((model) => make("option", {}, model.id)));
  }
  async ask() {
    this.#stop?.abort();
    const stop = this.#stop = new AbortController();
    this.clear();
    this.busy(true);
    let end;
    try {
      end = await this.stream(this.at("prompt").value.trim() || this.at("prompt").placeholder, stop.signal);
    } catch (error) {
      end = stop.signal.aborted ? ["stopped", "warn"] : ["failed", "bad"];
      if (!stop.signal.aborted && this.#stop === stop) this.fail(error.message);
    }
    if (this.#stop !== stop) return; // the next question has begun
    this.say(...end);
    this.busy(false);
  }
  // Answers how it ended: words and their colour.
  async stream(prompt, signal) {
    const headers = { "content-type": "application/json" };
    if (this.at("compress").value) headers["x-turnout-compress"] = this.at("compress").value;
    const body = { model: this.at("model").value, stream: true, stream_options: { include_usage: true }, max_tokens: Number(this.at("tokens").value), messages: [{ role: "user", content: prompt }] };
    const began = performance.now();
    const reply = await fetch(CHAT, { method: "POST", headers, body: JSON.stringify(body), signal });
    this.told(reply.headers);
    if (!reply.ok) throw new Error((await reply.json().catch(() => null))?.error?.message ?? `The gateway answered ${reply.status}.`);
    let first = null, last = null, usage = null, reason = null;
    for await (const chunk of events(reply.body)) {
      if (chunk.error) throw new Error(chunk.error.message);
      usage = chunk.usage ?? usage;
      reason = chunk.choices?.[0]?.finish_reason ?? reason;
      const delta = chunk.choices?.[0]?.delta, piece = (delta?.reasoning_content ?? "") + (delta?.content ?? "");
      if (!piece) continue;
      last = performance.now();
      if (first == null) {
        first = last;
        put(this.at("ttft"), timed((first - began) / 1000));
        this.say("streaming", "");
      }
      this.at("text").append(piece);
    }
    this.took(usage, first, last);
    if (reason === "length") return [`cut after ${usage ? count(usage.completion_tokens) : body.max_tokens} tok`, "warn"];
    return reason === "content_filter" ? ["cut by the model server's filter", "warn"] : ["done", "good"];
  }
  told(headers) {
    const fill = (id, name, words = (value) => value) => { const value = headers.get(`x-turnout-${name}`); put(this.at(id), value == null ? "–" : words(value)); };
    fill("pool", "pool");
    fill("replica", "replica");
    fill("route", "route", routed);
    fill("hit", "prefix-hit", (value) => `${percent(Number(value))} %`);
    fill("shorter", "compression", shortened);
    fill("request", "request-id");
    set(this.at("request"), "title", this.at("request").textContent);
  }
  took(usage, first, last) {
    if (!usage) return;
    put(this.at("in"), `${count(usage.prompt_tokens)} tok`);
    put(this.at("out"), `${count(usage.completion_tokens)} tok`);
    const cached = usage.prompt_tokens_details?.cached_tokens;
    if (cached != null) put(this.at("cached"), `${count(cached)} tok`);
    const each = usage.completion_tokens > 1 && last > first ? (last - first) / 1000 / (usage.completion_tokens - 1) : null;
    put(this.at("tpot"), timed(each));
    if (each) put(this.at("speed"), `${count(1 / each)} tok/s`);
  }
  fail(message) { this.at("error").hidden = false; put(this.at("error"), message); }
  say(text, kind) { const tag = this.at("went"); tag.hidden = false; tag.className = `tag ${kind}`; put(tag, text); }
  clear() {
    for (const cell of this.querySelectorAll(".facts td")) put(cell, "–");
    put(this.at("text"), "");
    this.at("text").hidden = false;
    this.at("empty").hidden = this.at("error").hidden = true;
    this.say("waiting", "");
  }
  // A screen reader reads the answer once, when it is whole.
  busy(on) { this.at("stop").disabled = !on; this.at("send").disabled = on; set(this.at("text"), "aria-busy", String(on)); }
}
customElements.define("chat-playground", Playground);
