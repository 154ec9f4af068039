// A figure's last four minutes as a line from zero; a second without a value leaves a gap.
import { make, set } from "../dom.js";

const SPAN = 240, WIDTH = 120, HEIGHT = 24;

class Spark extends HTMLElement {
  #points = [];
  connectedCallback() {
    this.append(make("svg:svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: "100%", height: HEIGHT, preserveAspectRatio: "none", role: "img" },
      make("svg:path", { class: "spark", "vector-effect": "non-scaling-stroke" })));
  }
  begin(points) { this.#points = points; }
  // `words` turns a value into text with its unit, for those who do not see the line.
  add(at, value, words) {
    this.#points = [...this.#points.filter((point) => point.at < at && point.at > at - SPAN), { at, value }];
    const values = this.#points.flatMap((point) => point.value ?? []);
    const top = Math.max(...values, 0) || 1;
    let path = "", pen = false;
    for (const point of this.#points) {
      const x = WIDTH * (1 - (at - point.at) / SPAN);
      if (point.value != null) path += `${pen ? "L" : "M"}${x.toFixed(1)} ${(HEIGHT - 2 - (HEIGHT - 4) * point.value / top).toFixed(1)}`;
      pen = point.value != null;
    }
    set(this.querySelector("path"), "d", path);
    const range = values.length ? `between ${words(Math.min(...values))} and ${words(Math.max(...values))}` : "nothing yet";
    set(this.querySelector("svg"), "aria-label", `${this.dataset.name}, last four minutes: ${range}`);
  }
}
customElements.define("live-spark", Spark);
