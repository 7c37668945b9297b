// The tree of conversations on the page.
import { $, bytesText, counted, make, put } from "./dom.js";
import { find, handlers, page, trash } from "./app.js";
import { finds, layout, line, wordsOf } from "./layout.js";

const kRow = 62, kColumn = 16, kLeft = 14, kMostColumns = 12, kDot = 5; // pixels, as in style.css
const kOperations = { create: "start", messages: "message", continue: "continued", choose: "chosen token" };

function badge(text, kind, title) { return make("span", { className: "badge " + kind, title }, text); }

function facts(s) {
  const below = make("div", { className: "facts" },
    make("span", { className: "operation" }, kOperations[s.operation.name] ?? s.operation.name));
  if (page.verified.has(s.id) || s.origin === "verified")
    below.append(badge("✓ same bits", "good", "computed again from its tokens: every bit is equal"));
  if (s.origin === "uploaded")
    below.append(badge("not verified", "warn", "from a file: Verify computes the state again"));
  if (s.open) below.append(badge("unfinished", "", "the reply has not ended: Continue resumes it"));
  if (s.pinned) below.append(badge("pinned", "", "no limit of the server deletes it"));
  if (!s.resident) below.append(badge("on disk", "", "evicted from memory; it is read again when needed"));
  below.append(make("span", { title: `${bytesText(s.bytes - s.shared_bytes)} of its own` }, counted(s.tokens, "token")),
    make("time", { title: new Date(1000 * s.created).toLocaleString() },
      new Date(1000 * s.created).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })));
  return below;
}

// Returns the beginning of a text in one row, with the words of the search marked.
function excerpt(text, words) {
  const row = text.replaceAll(/\s+/g, " "), lower = row.toLowerCase();
  if (words.length === 0 || lower.length !== row.length) return [row];
  const parts = [];
  let at = 0;
  for (;;) {
    const hits = words.map((w) => [lower.indexOf(w, at), w.length]).filter(([i]) => i >= 0)
      .sort((a, b) => a[0] - b[0] || b[1] - a[1]);
    if (hits.length === 0) return [...parts, row.slice(at)];
    const [[i, length]] = hits;
    parts.push(row.slice(at, i), make("mark", {}, row.slice(i, i + length)));
    at = i + length;
  }
}

// Returns the last question and its reply, or the end of raw text.
function texts(s, words) {
  const name = s.name ? [make("b", {}, ...excerpt(s.name, words)), " "] : [];
  if (s.role === null) return [make("div", { className: "raw", dir: "auto" }, ...name,
    ...excerpt(s.excerpt || "no text", words))];
  const reply = s.role === "assistant";
  return [make("div", { className: "question", dir: "auto" }, ...name, ...excerpt(s.question ?? "no question", words)),
    make("div", { className: reply ? "reply" : "reply none", dir: "auto" },
      ...(reply ? excerpt(s.excerpt, words) : ["no reply yet"]))];
}

function node(row, words) {
  const s = row.state;
  const element = make("div", { className: "node", role: "treeitem", tabIndex: -1, draggable: true },
    ...texts(s, words), facts(s));
  element.dataset.id = s.id;
  return element;
}

// Updates nodes in place, and keeps elements that are unchanged.
const drawn = new Map();

function nodeOf(row, words) {
  const s = row.state, what = JSON.stringify([s, page.verified.has(s.id), words]);
  const known = drawn.get(s.id);
  const element = known?.what === what ? known.element : node(row, words);
  drawn.set(s.id, { what, element });
  element.style.setProperty("--in", kLeft + kColumn * Math.min(row.column, kMostColumns) + "px");
  for (const [name, value] of [["aria-level", row.level], ["aria-setsize", row.siblings],
      ["aria-posinset", row.position], ["aria-selected", s.id === page.current]]) {
    element.setAttribute(name, value);
  }
  return element;
}

function edges(rows, path) {
  const place = new Map(rows.map((r, i) => [r.state.id,
    { x: kLeft + kColumn * Math.min(r.column, kMostColumns), y: kRow * i + 18 }]));
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("width", kLeft * 2 + kColumn * kMostColumns);
  svg.setAttribute("height", rows.length * kRow);
  svg.setAttribute("aria-hidden", "true");
  const lines = { all: "", path: "" };
  for (const r of rows) {
    if (!r.from) continue;
    const a = place.get(r.from), b = place.get(r.state.id);
    const d = `M${a.x} ${a.y + kDot}` + (a.x === b.x ? `V${b.y - kDot}`
      : `V${b.y - 8}Q${a.x} ${b.y} ${a.x + 8} ${b.y}H${b.x - kDot}`);
    lines[path.has(r.state.id) ? "path" : "all"] += d;
  }
  for (const [name, d] of Object.entries(lines)) {
    const shape = document.createElementNS("http://www.w3.org/2000/svg", "path");
    shape.setAttribute("d", d);
    shape.setAttribute("class", name);
    svg.append(shape);
  }
  return svg;
}

export const searched = () => wordsOf($("search").value);

// Draws page.states, or those that match the search.
export function drawTree() {
  page.rows = layout(page.all, (s) => !trash.has(s.id));
  const words = searched(), tree = $("tree"), focused = document.activeElement?.closest?.(".node")?.dataset.id;
  const rows = words.length === 0 ? page.rows : layout(page.all, (s) => !trash.has(s.id) && finds(words, s));
  const path = line(rows, page.current);
  const nodes = rows.map((r) => nodeOf(r, words));
  for (const id of drawn.keys()) if (!find(id)) drawn.delete(id);
  tree.replaceChildren(edges(rows, path), ...nodes);
  for (const [i, element] of nodes.entries()) element.classList.toggle("above", path.has(rows[i].state.id));
  const now = nodes.find((n) => n.dataset.id === page.current);
  for (const element of nodes) element.tabIndex = -1;
  if (nodes.length > 0) (now ?? nodes[0]).tabIndex = 0;
  put($("count"), words.length > 0 ? `${rows.length} of ${counted(page.states.length, "state")}`
    : counted(page.states.length, "state"));
  $("no-states").hidden = rows.length > 0;
  put($("no-states"), words.length > 0
    ? "No state matches. The search covers names, questions and the beginnings of replies." : "No states yet.");
  if (focused) nodes.find((n) => n.dataset.id === focused)?.focus({ preventScroll: true });
  return now;
}

export const bringIntoView = (element) => element?.scrollIntoView({ block: "nearest" });

const nodes = () => [...$("tree").querySelectorAll(".node")];
const nodeAt = (e) => e.target.closest?.(".node");

// Moves the focus by arrow keys (up and down the rows, left to the parent, right to the first child). Enter opens a
// row.
function walk(e) {
  const all = nodes(), at = all.indexOf(document.activeElement);
  if (at < 0) return;
  const level = (i) => Number(all[i]?.getAttribute("aria-level") ?? 0);
  let to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[e.key];
  if (e.key === "ArrowRight") to = level(at + 1) > level(at) ? at + 1 : at;
  if (e.key === "ArrowLeft") for (to = at; level(at) > 1 && level(to) >= level(at);) --to;
  if (to !== undefined) {
    e.preventDefault();
    const next = all[Math.max(0, Math.min(to, all.length - 1))];
    next.focus();
    bringIntoView(next);
  } else if (e.key === "Enter" || e.key === " ") {
    e.preventDefault();
    handlers.go(all[at].dataset.id);
  }
}

export function wireTree() {
  const tree = $("tree");
  tree.addEventListener("keydown", walk);
  tree.addEventListener("click", (e) => { const n = nodeAt(e); if (n) handlers.open(n.dataset.id); });
  tree.addEventListener("dragstart", (e) => {
    const n = nodeAt(e);
    if (n) e.dataTransfer.setData("text/plain", n.dataset.id);
  });
  tree.addEventListener("dragover", (e) => {
    const n = nodeAt(e);
    if (n) { e.preventDefault(); n.classList.add("over"); }
  });
  tree.addEventListener("dragleave", (e) => nodeAt(e)?.classList.remove("over"));
  tree.addEventListener("drop", (e) => {
    const n = nodeAt(e);
    if (!n) return;
    e.preventDefault();
    n.classList.remove("over");
    const id = e.dataTransfer.getData("text/plain");
    if (find(id)) handlers.compare(id, n.dataset.id);
  });
  $("search").addEventListener("input", () => drawTree());
  $("search").addEventListener("keydown", (e) => {
    if (e.key === "Escape") { $("search").value = ""; drawTree(); }
    if (e.key === "ArrowDown") { e.preventDefault(); nodes()[0]?.focus(); }
    if (e.key === "Enter") { e.preventDefault(); const first = nodes()[0]; if (first) handlers.open(first.dataset.id); }
  });
}
