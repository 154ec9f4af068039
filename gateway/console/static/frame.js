// What every page has: theme, keys, help.
const root = document.documentElement;
const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
document.querySelector("#theme").addEventListener("click", () => {
  root.dataset.theme = dark() ? "light" : "dark";
  localStorage.setItem("turnout-theme", root.dataset.theme);
});

const help = document.querySelector("#help");
document.querySelector("#keys").addEventListener("click", () => help.showModal());

let going = 0;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
  if (event.key === "?") help.showModal();
  else if (event.key === "/") {
    const field = document.querySelector("main textarea, main input");
    if (field) { event.preventDefault(); field.focus(); }
  } else if (event.key === "g") going = event.timeStamp;
  else if (going && event.timeStamp - going < 1500) {
    going = 0;
    document.querySelector(`.rail a[data-key="${CSS.escape(event.key)}"]`)?.click();
  }
});
