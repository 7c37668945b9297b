// Questions in a dialog over the page.
import { $, make, put } from "./dom.js";
import { countSigns } from "./signs.js";

function field(f) {
  const given = f.value ?? "", hidden = countSigns(String(given));
  const input = f.rows ? make("textarea", { name: f.name, value: given, rows: f.rows, required: f.required ?? false })
    : make("input", { name: f.name, type: f.type ?? "text", value: given,
      min: f.min ?? "", max: f.max ?? "", required: f.required ?? false });
  if (f.type === "checkbox") return make("label", { className: "check" }, input, f.label);
  return make("label", {}, f.label, input, hidden > 0 ? make("small", {},
    `There ${hidden === 1 ? "is one invisible sign" : `are ${hidden} invisible signs`} in this text.`) : null);
}

// Resolves to the values of the fields, or to null if the dialog is cancelled. A field is a node, or
// {label, name, type, value, rows, min, max, required}. `ok` is the text of the button. `danger` marks it as
// irreversible.
export function askFor(title, fields, { ok = "OK", danger = false, cancel = true, wide = false } = {}) {
  const dialog = $("dialog"), place = dialog.querySelector(".fields"),
    button = dialog.querySelector("button[value=ok]");
  put(dialog.querySelector("h2"), title);
  put(place, ...fields.map((f) => f instanceof Node ? f : field(f)));
  put(button, ok);
  button.classList.toggle("danger", danger);
  dialog.querySelector("button[value=cancel]").hidden = !cancel;
  dialog.classList.toggle("wide-dialog", wide);
  dialog.returnValue = "cancel";
  dialog.showModal();
  (place.querySelector("input, textarea, select") ?? button).focus();
  return new Promise((done) => dialog.addEventListener("close", () => {
    if (dialog.returnValue !== "ok") return done(null);
    const values = {};
    for (const input of place.querySelectorAll("input, textarea, select"))
      values[input.name] = input.type === "checkbox" ? input.checked : input.value;
    done(values);
  }, { once: true }));
}
