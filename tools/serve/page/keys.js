// Keyboard shortcuts and the page's help.
import { handlers, page, state } from "./app.js";
import { askFor } from "./dialog.js";
import { $, make } from "./dom.js";
import { begin, focusPane, operations, undoDelete } from "./operations.js";
import { attempt, reply } from "./replies.js";
import { back, show } from "./view.js";

export const kTree =
  "Each row is a state: everything the model knows after that reply, kept bit for bit. " +
  "Continue from any row: nothing is overwritten, and other replies and edited messages stand beside the ones that " +
  "they replace.";

const kOperations = {
  f: "fork", r: "rewind", p: "prune", c: "compare", v: "verify", n: "name", i: "pin", s: "save", Delete: "delete"
};

const kHelp = [
  ["Go", [["/", "write a message"], ["Ctrl K", "search in the tree"], ["↑ ↓", "walk the rows of the tree"],
    ["← →", "to the state before, or the first one after"],
    ["Enter", "go to the row in focus"], ["u", "back to the state before"]]],
  ["Replies", [["Enter", "send; Shift Enter for a new line"], [".", "draw one token"],
    ["Esc", "stop a reply"], ["z", "undo a deletion"]]],
  ["This state", Object.entries(kOperations)],
  ["Drag a state", [["onto another", "compare the two"], ["onto the conversation", "fork it"]]],
];

export function help() {
  const part = ([title, rows]) => make("div", {}, make("h3", {}, title),
    make("table", {}, make("tbody", {}, ...rows.map(([key, what]) =>
      make("tr", {}, make("td", {}, make("kbd", {}, key)), make("td", {}, what))))));
  return askFor("Help", [make("p", {}, kTree), make("div", { className: "help" }, ...kHelp.map(part))],
    { ok: "Close", cancel: false, wide: true });
}

function operation(e) {
  const focused = document.activeElement?.closest?.(".node");
  if (!kOperations[e.key] || !(focused || state())) return;
  e.preventDefault();
  attempt(async () => {
    if (focused && focused.dataset.id !== page.current) await show(focused.dataset.id);
    await operations[kOperations[e.key]]();
  });
}

function search() {
  focusPane("states");
  $("search").focus();
  $("search").select();
}

export function keys(e) {
  if (document.querySelector("dialog[open]")) return;
  if (e.key.toLowerCase() === "k" && (e.ctrlKey || e.metaKey)) { e.preventDefault(); return search(); }
  if (e.key === "Escape" && page.running) return page.running.abort();
  if (e.target.closest("input, textarea, select") || e.ctrlKey || e.metaKey || e.altKey) return;
  const simple = { "?": help, z: undoDelete, "/": () => { focusPane("talk"); $("text").focus(); } }[e.key];
  if (simple) { e.preventDefault(); return simple(); }
  if (e.key === "." && $("step").getAttribute("aria-disabled") === "false")
    return attempt(() => reply({ max_tokens: 1 }));
  if (e.key === "u" && back()) return handlers.go(back());
  operation(e);
}
