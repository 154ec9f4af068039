// The overview: the answer in words, figures with a spark line, the pools' board, what changed.
import { onPicture } from "../live.js";
import { ago, count, duration, percent, timed } from "../numbers.js";
import { make, put } from "../dom.js";
import "./track.js";

const at = (id) => document.getElementById(id);

class Spark extends HTMLElement {
  #values = [];
  add(value) {
    this.#values.push(value ?? 0);
    if (this.#values.length > 60) this.#values.shift();
    const top = Math.max(...this.#values, 1e-9);
    const points = this.#values.map((v, i) => `${(i + 60 - this.#values.length) * 2},${(21 - 18 * v / top).toFixed(1)}`);
    if (!this.firstChild) {
      this.append(make("svg:svg", { viewBox: "0 0 118 24", width: "100%", height: "24", preserveAspectRatio: "none", "aria-hidden": "true" },
        make("svg:polyline", { class: "spark", "vector-effect": "non-scaling-stroke" })));
    }
    this.querySelector("polyline").setAttribute("points", points.join(" "));
  }
}
customElements.define("live-spark", Spark);

function figure(id, text, value, unit) {
  put(at(id), text);
  if (unit != null) put(at(`${id}-unit`), unit);
  document.querySelector(`live-spark[data-of="${id}"]`).add(value);
}

function time(id, p50, p95) {
  const [text, unit] = duration(p50) ?? ["–", "ms"];
  figure(id, text, p50, p95 == null ? unit : `${unit} · p95 ${timed(p95)}`);
}

function figures({ system, running, waiting }) {
  figure("requests", count(system.requests), system.requests, `/s · ${running} running${waiting ? `, ${waiting} waiting` : ""}`);
  time("ttft", system.ttft_p50, system.ttft_p95);
  time("tpot", system.tpot_p50, system.tpot_p95);
  figure("output", count(system.output_tokens), system.output_tokens);
  figure("user", system.user_tokens == null ? "–" : count(system.user_tokens), system.user_tokens);
  figure("errors", percent(system.errors), system.errors);
  figure("hit", percent(system.prefix_hit), system.prefix_hit);
  figure("removed", count(system.tokens_removed), system.tokens_removed);
}

const TAGS = { ready: ["good", "ready"], starting: ["warn", "starting"], building: ["warn", "building"], "at zero": ["", "at zero"], down: ["bad", "down"] };

function tile(replica) {
  const joining = replica.state === "joining", leaving = replica.state === "draining" || replica.state === "gone";
  const share = replica.kv_used ?? Math.min(1, replica.running / Math.max(1, replica.slots));
  const what = replica.kv_used == null ? `${replica.running} of ${replica.slots} slots` : `KV ${percent(replica.kv_used)} %`;
  const fill = make("div", { class: "fill" });
  fill.style.height = `${share * 100}%`;
  const state = make("em", {}, joining ? "starting" : leaving ? replica.state : `● ${replica.running}`);
  if (replica.waiting) state.append(" ", make("i", {}, `+${replica.waiting}`));
  const words = `${replica.id}: ${replica.state}, ${what}, ${replica.running} running, ${replica.waiting} waiting${replica.reason ? `; ${replica.reason}` : ""}`;
  return make("div", { class: `tile${joining ? " joining" : leaving ? " draining" : ""}`, title: words, role: "img", "aria-label": words },
    fill, make("b", {}, replica.id.split("/").pop()), state);
}

function row(pool) {
  const [kind, text] = TAGS[pool.status] ?? ["", pool.status];
  const name = make("td", {}, make("b", {}, pool.name), " ", make("span", { class: "faint mono" }, pool.model), make("br"), make("span", { class: `tag ${kind}` }, text));
  const waiting = pool.waiting ? [make("span", { class: "warn-text" }, `+${pool.waiting} at the gateway`)] : [];
  const tiles = make("td", {}, make("div", { class: "tiles" }, ...pool.replicas.map(tile), ...waiting));
  const number = (text) => make("td", { class: "num nowrap" }, text);
  const rates = pool.rates;
  return make("tr", { class: pool.tier }, name, tiles,
    number(rates.ttft_p50 == null ? "–" : `${timed(rates.ttft_p50)} / ${timed(rates.ttft_p95)}`), number(timed(rates.tpot_p50)),
    number(count(rates.output_tokens)), number(rates.prefix_hit == null ? "–" : `${percent(rates.prefix_hit)} %`), make("td", { class: "soft" }, pool.why || "as configured"));
}

function pools(picture) {
  const body = at("pools").tBodies[0];
  at("pools-empty").hidden = picture.pools.length > 0;
  if (!body.matches(":hover")) body.replaceChildren(...picture.pools.map(row));
}

function events(picture) {
  at("events-empty").hidden = picture.events.length > 0;
  at("events").replaceChildren(...picture.events.map((event) => make("li", {},
    make("time", { datetime: new Date(event.at * 1000).toISOString(), title: new Date(event.at * 1000).toLocaleString() }, ago(event.at, picture.at)),
    make("div", {}, make("b", {}, event.title), " ", event.text))));
}

function answer({ pools: all, system }) {
  const down = all.filter((pool) => pool.status === "down").map((pool) => pool.name);
  const coming = all.filter((pool) => pool.status === "starting" || pool.status === "building").map((pool) => `${pool.name} is ${pool.status}`);
  const trouble = down.length ? `${down.join(" and ")} cannot answer.` : coming.length ? `${coming.join(", ")}.` : "All is well.";
  const load = system.count ? ` ${count(system.count)} request${system.count === 1 ? "" : "s"} in the last minute${system.errors ? `, ${percent(system.errors)} % of them failed` : ""}.` : " No request in the last minute.";
  put(at("answer"), trouble + load);
}

onPicture((picture) => { answer(picture); figures(picture); pools(picture); events(picture); });
