// Before the first paint: the theme the operator chose, if any.
try {
  const chosen = localStorage.getItem("turnout-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch { /* no storage: the system's theme */ }
