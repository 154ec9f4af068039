// One event stream of pictures, shared by the islands of a page. A stale stream says how old it is.
import { at, put } from "./dom.js";

const pictures = new EventTarget();
let last = 0;

function say(text, kind) {
  const tag = at("stream");
  tag.hidden = false;
  tag.className = `tag ${kind}`;
  put(tag, text);
}

function open() {
  const source = new EventSource("/console/live");
  source.addEventListener("history", (event) => tell("history", event));
  source.addEventListener("overview", (event) => {
    last = Date.now();
    say("live", "good");
    tell("picture", event);
  });
  // The browser tries again by itself when a connection breaks, but not when the gateway refuses.
  source.addEventListener("error", () => { if (source.readyState === EventSource.CLOSED) setTimeout(again, 2000); });
}

async function again() {
  const reply = await fetch("/console/v1/models").catch(() => null);
  if (reply?.status === 401) location.assign("/console"); else open();
}

function tell(name, event) { pictures.dispatchEvent(new CustomEvent(name, { detail: JSON.parse(event.data) })); }

setInterval(() => {
  const age = Math.round((Date.now() - last) / 1000);
  if (last && age > 3) say(`${age} s old, connecting again`, "warn");
}, 1000);

say("connecting", "");
open();

export const onPicture = (draw) => pictures.addEventListener("picture", (event) => draw(event.detail));
export const onHistory = (draw) => pictures.addEventListener("history", (event) => draw(event.detail));
