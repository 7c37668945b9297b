// Helpers for elements. All text on the page goes through them, so that invisible characters are shown.
import { pieces, plain } from "./signs.js";

export const $ = (id) => document.getElementById(id);

const kTexts = new Set(["title", "ariaLabel", "placeholder", "alt"]);

// Returns the nodes that show a text.
export function shown(text) {
  return pieces(text).map((piece) => {
    if (typeof piece === "string") return document.createTextNode(piece);
    const sign = document.createElement("span");
    sign.className = "sign";
    sign.title = `${piece.sign}, ${piece.name}: it is in the text and would not be seen`;
    sign.textContent = piece.sign;
    return sign;
  });
}

export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, given] of Object.entries(properties)) {
    const value = kTexts.has(name) ? plain(String(given)) : given;
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  put(element, ...children);
  return element;
}

// Replaces the children of an element. Null stands for nothing.
export function put(element, ...children) {
  element.replaceChildren();
  for (const child of children) {
    if (child === null) continue;
    for (const node of child instanceof Node ? [child] : shown(String(child))) element.append(node);
  }
}

export const visible = (text) => text.replaceAll("\n", "⏎").replaceAll(" ", "·") || "∅";
export const bytesText = (n) =>
  n >= 1e9 ? (n / 1e9).toFixed(1) + " GB" : n >= 1e6 ? (n / 1e6).toFixed(1) + " MB" : Math.round(n / 1e3) + " KB";
export const percent = (p) => p >= 0.9995 ? "100 %" : p > 0 && p < 0.0005 ? "< 0.1 %" : (100 * p).toFixed(1) + " %";
export const plainNumber = (n) => String(Number(n.toPrecision(6)));
// Returns the largest magnitude in a table. As arguments of one call, many numbers would exceed the stack.
export const largest = (rows) =>
  rows.reduce((most, row) => row.reduce((m, v) => Math.max(m, Math.abs(v)), most), 1e-9);
export const counted = (n, one) => `${n} ${one}${n === 1 ? "" : "s"}`;

export function say(text, bad = false) {
  put($("told"), text);
  $("told").classList.toggle("bad", bad);
}

// Returns a function that fills a place with the elements of `draw()`, or of `failed(error)`. Of several calls only the
// last one is shown. A choice in the place keeps the focus.
export function redrawing(place, draw, failed) {
  let latest = 0;
  return async () => {
    const turn = ++latest, parts = await draw().catch(failed);
    if (turn !== latest) return;
    const focused = place.contains(document.activeElement) ? document.activeElement.ariaLabel : null;
    place.replaceChildren(...parts);
    if (focused) place.querySelector(`select[aria-label="${focused}"]`)?.focus();
  };
}

// Copies a text. Without TLS, other machines' pages have no clipboard API, so the older way is tried.
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = make("textarea", { value: text, className: "hidden" });
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (!copied) throw new Error("The browser does not let this page copy: select the text and copy it by hand.");
}

// Confirms beside the button that it worked, for a moment.
export function copyButton(text, label) {
  const button = make("button", { type: "button", className: "copy", ariaLabel: label }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await copyText(text());
      button.textContent = "Copied";
    } catch (error) {
      button.textContent = "Not copied";
      say(error.message, true);
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return button;
}
