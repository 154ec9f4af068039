// The switch: one track that parts, with the numbers of the last minute on it, and the same as a table.
import { each, make, put, set } from "../dom.js";
import { onPicture } from "../live.js";
import { count, percent, timed } from "../numbers.js";

const IN = "M20 105H330";
const PATHS = { small: "M330 99C420 99 420 55 520 55H760", large: "M330 113C420 113 420 158 520 158H760" };
const ROWS = { small: [30, 86, 59], large: [138, 186, 162] };
const LONGEST = 46; // characters of a name that fit beside the track
const HEAD = ["Track", "Share", "Output", "TTFT p50", "Prefix hit", "Replicas"];

const line = (d, name, width) => make("svg:path", { d, class: name, "stroke-width": width });
const text = (id, x, y, name = "", anchor = "start") => make("svg:text", { id: `track-${id}`, x, y, class: name, "text-anchor": anchor });
const stop = (x) => make("svg:circle", { cx: x, cy: 105, r: x === 330 ? 6 : 5, class: x === 330 ? "stop points" : "stop" });
const label = (x, word) => { const made = text(`label-${word}`, x, 76, "", "middle"); made.textContent = word; return made; };

function drawing() {
  return make("svg:svg", { viewBox: "20 12 860 184", width: "100%", "aria-hidden": "true" },
    line(IN, "rail-bed in", 26), line(PATHS.small, "rail-bed small", 4), line(PATHS.large, "rail-bed large", 4),
    line(IN, "flow in"), line(PATHS.small, "flow small"), line(PATHS.large, "flow large"),
    stop(90), stop(212), stop(330), label(90, "admitted"), label(212, "compressed"), label(330, "decided"),
    text("admitted", 90, 142, "strong", "middle"), text("compressed", 212, 142, "strong", "middle"), text("decided", 322, 142, "strong", "middle"),
    ...Object.entries(ROWS).flatMap(([tier, [name, rates, many]]) => [text(`${tier}-name`, 530, name, "strong"), text(`${tier}-rates`, 530, rates), text(`${tier}-many`, 775, many, "strong")]));
}

// The chat pools of one tier as one track.
function track(tier, chat, all) {
  const pools = chat.filter((pool) => pool.tier === tier), sum = (of) => pools.reduce((total, pool) => total + of(pool), 0);
  const busiest = pools.toSorted((a, b) => b.rates.requests - a.rates.requests)[0]?.rates;
  const requests = sum((pool) => pool.rates.requests), ready = sum((pool) => pool.replicas.filter((replica) => replica.state === "ready").length);
  const names = pools.map((pool) => pool.name + (pool.model && pool.model !== pool.name ? ` · ${pool.model}` : "")).join(", ");
  return {
    tier, requests, output: sum((pool) => pool.rates.output_tokens), there: pools.length > 0,
    names: names || "no pool of this size", replicas: `${ready} replica${ready === 1 ? "" : "s"}`,
    share: !pools.length ? "–" : all ? `${percent(requests / all)} %` : "idle",
    ttft: timed(busiest?.ttft_p50), hit: busiest?.prefix_hit == null ? "–" : `${percent(busiest.prefix_hit)} %`,
  };
}

class Track extends HTMLElement {
  connectedCallback() {
    const head = make("thead", {}, make("tr", {}, ...HEAD.map((name) => make("th", { scope: "col" }, name))));
    const table = make("table", {}, make("caption", {}, "Where the last minute's chat requests went"), head, make("tbody"));
    this.append(drawing(), make("div", { class: "behind" }, table));
    onPicture((picture) => this.draw(picture));
  }
  put(id, words) { put(this.querySelector(`#track-${id}`), words); }
  draw(picture) {
    const chat = picture.pools.filter((pool) => pool.kind === "chat"), all = chat.reduce((total, pool) => total + pool.rates.requests, 0);
    const tracks = Object.keys(ROWS).map((tier) => track(tier, chat, all)), output = tracks.reduce((total, one) => total + one.output, 0);
    const removed = picture.system.tokens_removed;
    this.classList.toggle("idle", !all && !picture.running);
    this.put("admitted", `${count(all)} /s${picture.waiting ? ` · ${picture.waiting} waiting` : ""}`);
    this.put("compressed", removed ? `−${count(removed)} tok/s` : "nothing");
    this.put("decided", `${picture.running} running`);
    for (const one of tracks) {
      const { tier } = one;
      this.put(`${tier}-name`, one.names.length > LONGEST ? `${one.names.slice(0, LONGEST - 1)}…` : one.names);
      this.put(`${tier}-rates`, !one.there ? "" : one.requests ? `${one.share} · prefix hit ${one.hit} · TTFT ${one.ttft}` : "no request in the last minute");
      this.put(`${tier}-many`, one.there ? one.replicas : "");
      set(this.querySelector(`.rail-bed.${tier}`), "stroke-width", String(Math.round(4 + 18 * (output ? one.output / output : 0))));
      this.querySelector(`.flow.${tier}`).classList.toggle("idle", !one.requests);
    }
    each(this.querySelector("tbody"), tracks.filter((one) => one.there), (one) => one.tier, () => make("tr", {}, ...HEAD.map(() => make("td"))),
      (row, one) => [one.names, one.share, `${count(one.output)} tok/s`, one.ttft, one.hit, one.replicas].forEach((words, index) => {
        set(row.cells[index], "data-label", HEAD[index]);
        put(row.cells[index], words);
      }));
  }
}
customElements.define("live-track", Track);
