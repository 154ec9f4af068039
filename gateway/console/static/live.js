// One event stream of pictures, shared by the islands of a page. A stale stream says how old it is.
const tag = document.querySelector("#stream");
const pictures = new EventTarget();
let last = 0;

function say(text, kind) {
  tag.hidden = false;
  tag.className = `tag ${kind}`;
  if (tag.textContent !== text) tag.textContent = text;
}

const source = new EventSource("/console/live");
source.addEventListener("overview", (event) => {
  last = Date.now();
  const picture = JSON.parse(event.data);
  if (picture.stale) say("live; the database does not answer", "warn"); else say("live", "good");
  pictures.dispatchEvent(new CustomEvent("picture", { detail: picture }));
});
setInterval(() => {
  const age = Math.round((Date.now() - last) / 1000);
  if (last === 0) say("connecting", ""); else if (age > 3) say(`${age} s old; reconnecting`, "warn");
}, 1000);

export const onPicture = (draw) => pictures.addEventListener("picture", (event) => draw(event.detail));
