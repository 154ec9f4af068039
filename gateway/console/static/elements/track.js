// The switch: one track that parts, with the numbers of the last minute on it.
import { onPicture } from "../live.js";
import { count, percent, timed } from "../numbers.js";
import { make, put } from "../dom.js";

const PATHS = { small: "M330 99C420 99 420 55 520 55H760", large: "M330 113C420 113 420 158 520 158H760" };
const IN = "M20 105H330";
const ROWS = { small: [30, 86, 59], large: [138, 186, 162] };

class Track extends HTMLElement {
  connectedCallback() {
    const line = (d, name, flow) => make("svg:path", { d, class: `${flow ? "flow " : "rail-bed "}${name}` });
    const text = (id, x, y, name = "", anchor = "start") => make("svg:text", { id: `track-${id}`, x, y, class: name, "text-anchor": anchor });
    const stop = (x) => make("svg:circle", { cx: x, cy: 105, r: 5, class: "stop" });
    const label = (x, word) => { const t = text(`label-${word}`, x, 76, "", "middle"); t.textContent = word; return t; };
    this.append(make("svg:svg", { viewBox: "20 12 860 184", width: "100%", role: "img", "aria-label": "Share of requests by pool" },
      line(IN, "in"), line(PATHS.small, "small"), line(PATHS.large, "large"), line(IN, "in", true), line(PATHS.small, "small", true), line(PATHS.large, "large", true),
      stop(90), stop(212), stop(330), label(90, "admitted"), label(212, "compressed"), label(330, "decided"),
      text("admitted", 90, 142, "strong", "middle"), text("compressed", 212, 142, "strong", "middle"), text("decided", 322, 142, "strong", "middle"),
      ...Object.entries(ROWS).flatMap(([tier, [name, rates, many]]) => [text(`${tier}-name`, 530, name, "strong"), text(`${tier}-rates`, 530, rates), text(`${tier}-many`, 780, many, "strong")])));
    onPicture((picture) => this.draw(picture));
  }
  put(id, text) { put(this.querySelector(`#track-${id}`), text); }
  draw(picture) {
    const chat = picture.pools.filter((pool) => pool.kind === "chat");
    const all = chat.reduce((sum, pool) => sum + pool.rates.requests, 0), out = chat.reduce((sum, pool) => sum + pool.rates.output_tokens, 0);
    const moving = all > 0 || picture.running > 0;
    this.classList.toggle("still", !moving);
    this.put("admitted", `${count(all)} /s${picture.waiting ? ` · ${picture.waiting} waiting` : ""}`);
    this.put("compressed", `−${count(picture.system.tokens_removed)} tok/s`);
    this.put("decided", `${picture.running} running`);
    const words = [];
    for (const tier of Object.keys(ROWS)) {
      const pools = chat.filter((pool) => pool.tier === tier), requests = pools.reduce((sum, pool) => sum + pool.rates.requests, 0);
      const tokens = pools.reduce((sum, pool) => sum + pool.rates.output_tokens, 0), ready = pools.reduce((sum, pool) => sum + pool.replicas.filter((r) => r.state === "ready").length, 0);
      const first = pools[0], share = all ? requests / all : null;
      this.put(`${tier}-name`, pools.map((pool) => pool.name + (pool.model && pool.model !== pool.name ? ` · ${pool.model}` : "")).join(", ") || "no pool of this tier");
      this.put(`${tier}-rates`, first ? `${share == null ? "idle" : `${percent(share)} %`} · prefix hit ${first.rates.prefix_hit == null ? "–" : `${percent(first.rates.prefix_hit)} %`} · TTFT ${timed(first.rates.ttft_p50)}` : "");
      this.put(`${tier}-many`, `${ready} replica${ready === 1 ? "" : "s"}`);
      this.querySelector(`.rail-bed.${tier}`).setAttribute("stroke-width", String(4 + 20 * (out ? tokens / out : 0)));
      this.querySelector(`.flow.${tier}`).classList.toggle("idle", !requests);
      words.push(`${tier}: ${share == null ? "idle" : `${percent(share)} percent`}`);
    }
    this.querySelector("svg").setAttribute("aria-label", `${count(all)} requests a second; ${words.join("; ")}`);
  }
}
customElements.define("live-track", Track);
