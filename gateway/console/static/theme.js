// Before the first paint: the theme the operator chose, if any.
const chosen = localStorage.getItem("turnout-theme");
if (chosen) document.documentElement.dataset.theme = chosen;
