// Runs before anything is drawn. Without a choice, the page follows the system (style.css).
try {
  const theme = localStorage.getItem("theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch { /* a browser that keeps nothing */ }
