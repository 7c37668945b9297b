// Small helpers for what stands on the page.
export const $ = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const field = (f) => f.rows ? make("textarea", { name: f.name, value: f.value ?? "", rows: f.rows })
  : make("input", { name: f.name, type: f.type ?? "text", value: f.value ?? "" });

// Asks for some fields; null where the person thinks better of it.
export function askFor(title, fields) {
  const dialog = $("dialog"), place = dialog.querySelector(".fields");
  dialog.querySelector("h2").textContent = title;
  place.replaceChildren(...fields.map((f) => f instanceof Node ? f : make("label", {}, f.label, field(f))));
  dialog.returnValue = "cancel";
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => {
    if (dialog.returnValue !== "ok") return done(null);
    const values = {};
    for (const input of place.querySelectorAll("input, textarea, select")) values[input.name] = input.type === "checkbox" ? input.checked : input.value;
    done(values);
  }, { once: true }));
}

export const visible = (text) => text.replaceAll("\n", "⏎").replaceAll(" ", "·") || "∅";
export const bytesText = (n) => n >= 1e9 ? (n / 1e9).toFixed(1) + " GB" : n >= 1e6 ? (n / 1e6).toFixed(1) + " MB" : Math.round(n / 1e3) + " KB";
export const percent = (p) => p >= 0.9995 ? "100 %" : p > 0 && p < 0.0005 ? "< 0.1 %" : (100 * p).toFixed(1) + " %";

export function say(text, bad = false) {
  $("told").textContent = text;
  $("told").classList.toggle("bad", bad);
}
