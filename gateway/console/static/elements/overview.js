// The overview: is it well, what changed, the figures, and the pools' board. Values change in place.
import { at, each, make, put, set } from "../dom.js";
import { onHistory, onPicture } from "../live.js";
import { ago, alike, both, count, duration, percent, timed } from "../numbers.js";
import "./spark.js";
import "./track.js";

const rate = (unit) => ({ text: (value) => [count(value), unit] });
const time = (p50, p95) => ({ of: p50, text: (value, system) => { const [number, unit] = duration(value); return [number, system?.[p95] == null ? unit : `${unit} · p95 ${alike(value, system[p95])}`]; } });
const share = { text: (value) => [percent(value), "%"] };
const FIGURES = {
  requests: { ...rate("/s"), of: "requests" }, ttft: time("ttft_p50", "ttft_p95"), tpot: time("tpot_p50", "tpot_p95"),
  output: { ...rate("tok/s"), of: "output_tokens" }, user: { ...rate("tok/s"), of: "user_tokens" },
  errors: { ...share, of: "errors" }, hit: { ...share, of: "prefix_hit" }, removed: { ...rate("tok/s"), of: "tokens_removed" },
};

function figures({ at: now, system }) {
  for (const [id, { of, text }] of Object.entries(FIGURES)) {
    const value = system[of];
    if (value != null) {
      const [number, unit] = text(value, system);
      put(at(id), number);
      put(at(`${id}-unit`), unit);
    } else put(at(id), "–");
    at(`${id}-spark`).add(now, value, (one) => text(one).join(" "));
  }
}

const TAGS = { ready: "good", growing: "warn", shrinking: "warn", full: "warn", failing: "bad", starting: "warn", building: "warn", "at zero": "", down: "bad" };
const STATES = { joining: "starting", draining: "leaving", gone: "stopped" };

function verdict({ verdict: { level, text }, events: [newest], at: now }) {
  set(at("level"), "class", `dot ${level}`);
  put(at("answer"), text);
  put(at("latest"), newest ? `Last change ${ago(newest.at, now)} ago: ${newest.title}.` : "");
}

function newTile() {
  return make("div", { role: "img" }, make("div", { class: "fill" }), make("b"), make("em", {}, make("span"), make("i")));
}

function tile(element, replica) {
  const used = replica.kv_used ?? Math.min(1, replica.running / Math.max(1, replica.slots));
  const what = replica.kv_used == null ? `${replica.running} of ${replica.slots} slots` : `KV ${percent(replica.kv_used)} %, ${replica.running} running of ${replica.slots}`;
  const state = STATES[replica.state] ?? (replica.blocked ? "held back" : `● ${replica.running}`);
  const words = `${replica.id}: ${replica.blocked ? "held back after errors" : STATES[replica.state] ?? "ready"}, ${what}, ${replica.waiting} waiting${replica.reason ? `; ${replica.reason}` : ""}`;
  set(element, "class", `tile ${replica.state}${replica.blocked ? " blocked" : ""}`);
  set(element, "title", words);
  set(element, "aria-label", words);
  element.querySelector(".fill").style.height = `${Math.round(used * 100)}%`;
  put(element.querySelector("b"), replica.id);
  put(element.querySelector("span"), state);
  put(element.querySelector("i"), replica.waiting ? ` +${replica.waiting}` : "");
}

const COLUMNS = ["Pool", "Replicas", "TTFT p50 / p95", "TPOT", "tok/s", "Prefix hit", "Why this many"];
function newRow() {
  const cells = COLUMNS.map((label, index) => make("td", { "data-label": label, class: index > 1 && index < 6 ? "num nowrap" : null }));
  cells[0].append(make("b"), make("span", { class: "tag" }), make("span", { class: "soft model" }));
  cells[1].append(make("div", { class: "tiles" }), make("span", { class: "warn-text" }));
  cells[6].classList.add("soft");
  return make("tr", {}, ...cells);
}

function row(element, pool) {
  const [name, board, ttft, tpot, output, hit, why] = element.cells, rates = pool.rates;
  set(element, "class", pool.tier);
  put(name.querySelector("b"), pool.name);
  set(name.querySelector(".tag"), "class", `tag ${TAGS[pool.status]}`);
  put(name.querySelector(".tag"), pool.status);
  const model = name.querySelector(".model");
  put(model, pool.model === pool.name ? "" : pool.model);
  set(model, "title", pool.model);
  each(board.firstChild, pool.replicas, (replica) => replica.id, newTile, tile);
  put(board.lastChild, pool.waiting ? `+${pool.waiting} waiting at the gateway` : pool.replicas.length ? "" : "none");
  set(board.lastChild, "class", pool.waiting ? "warn-text" : "soft");
  put(ttft, both(rates.ttft_p50, rates.ttft_p95));
  put(tpot, timed(rates.tpot_p50));
  put(output, count(rates.output_tokens));
  put(hit, rates.prefix_hit == null ? "–" : `${percent(rates.prefix_hit)} %`);
  put(why, pool.why || "as configured");
}

function pools(picture) {
  at("pools-empty").hidden = picture.pools.length > 0;
  at("pools").hidden = picture.pools.length === 0;
  each(at("pools").tBodies[0], picture.pools, (pool) => pool.name, newRow, row);
}

function newEvent() { return make("li", {}, make("time"), make("div", {}, make("b"), " ", make("span", { class: "soft" }))); }
function event(element, { at: when, title, text, level }, now) {
  const time = element.querySelector("time"), date = new Date(when * 1000);
  put(time, ago(when, now));
  set(time, "datetime", date.toISOString());
  set(time, "title", date.toLocaleString());
  put(element.querySelector("b"), `${title}.`);
  set(element.querySelector("b"), "class", `${level}-text`);
  put(element.querySelector("span"), text);
}

function events(picture) {
  at("events-empty").hidden = picture.events.length > 0;
  each(at("events"), picture.events, (one) => `${one.at} ${one.title}`, newEvent, (element, one) => event(element, one, picture.at));
}

onHistory((moments) => {
  for (const [id, { of }] of Object.entries(FIGURES)) at(`${id}-spark`).begin(moments.map((moment) => ({ at: moment.at, value: moment.system[of] })));
});
onPicture((picture) => { verdict(picture); figures(picture); pools(picture); events(picture); });
