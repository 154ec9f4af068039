// What every page has: theme, keys, help.
import { at } from "./dom.js";

const root = document.documentElement;
const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
at("theme").addEventListener("click", () => {
  root.dataset.theme = dark() ? "light" : "dark";
  try { localStorage.setItem("turnout-theme", root.dataset.theme); } catch { /* no storage: it holds until the page is left */ }
});

const help = at("help");
at("keys").addEventListener("click", () => help.showModal());

let going = 0;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, textarea, select")) return;
  const second = going && event.timeStamp - going < 1500;
  going = event.key === "g" ? event.timeStamp : 0;
  if (event.key === "?" && !help.open) help.showModal();
  else if (event.key === "/") {
    event.preventDefault();
    help.close();
    const prompt = at("prompt");
    if (prompt) prompt.focus(); else location.assign("/console/playground");
  } else if (second) document.querySelector(`.rail a[data-key="${CSS.escape(event.key)}"]`)?.click();
});
