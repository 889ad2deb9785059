// Before the first paint: the choice of an earlier visit.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem('wirefence-theme'); } catch { /* no storage: the system's */ }
  if (chosen === 'light' || chosen === 'dark') document.documentElement.dataset.theme = chosen;
})();
