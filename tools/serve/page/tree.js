// The tree of states as rows: a state's first continuation goes on below it, every other one begins a column of its own.
import { $, make, bytesText } from "/page/dom.js";

const kRow = 34, kColumn = 14, kLeft = 14;

export function layout(states) {
  const children = new Map(), roots = [], known = new Set(states.map((s) => s.id));
  for (const s of states) {
    if (s.parent && known.has(s.parent)) children.set(s.parent, [...(children.get(s.parent) ?? []), s]);
    else roots.push(s);
  }
  const rows = [];
  // A stack of its own: a long conversation is a deep tree.
  const stack = roots.map((s) => ({ state: s, column: 0, level: 1 })).reverse();
  while (stack.length > 0) {
    const row = stack.pop();
    rows.push(row);
    const [first, ...others] = children.get(row.state.id) ?? [];
    if (first) stack.push({ state: first, column: row.column, level: row.level + 1, from: row.state.id });
    others.forEach((s, i) => stack.push({ state: s, column: row.column + 1 + (others.length - 1 - i) % 3, level: row.level + 1, from: row.state.id }));
  }
  return rows;
}

function facts(s) {
  const words = [s.operation.name, s.tokens + " tokens", bytesText(s.bytes - s.shared_bytes), new Date(1000 * s.created).toLocaleTimeString()];
  if (s.open) words.push("open");
  if (s.pinned) words.push("pinned");
  if (!s.resident) words.push("in a file");
  if (s.origin === "uploaded") words.push("not verified");
  return words.join(" · ");
}

function drawEdges(rows, current) {
  const place = new Map(rows.map((r, i) => [r.state.id, { x: kLeft + kColumn * r.column, y: kRow * (i + 0.5) }]));
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const width = Math.max(...rows.map((r) => r.column), 0) * kColumn + 2 * kLeft;
  svg.setAttribute("width", width);
  svg.setAttribute("height", rows.length * kRow);
  svg.setAttribute("aria-hidden", "true");
  const shape = (name, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    svg.append(element);
  };
  for (const { state, from } of rows) {
    if (!from) continue;
    const a = place.get(from), b = place.get(state.id);
    shape("path", { d: a.x === b.x ? `M${a.x} ${a.y}V${b.y}` : `M${a.x} ${a.y}V${b.y - 10}Q${a.x} ${b.y} ${b.x} ${b.y}` });
  }
  for (const { state } of rows) {
    const { x, y } = place.get(state.id);
    shape("circle", { cx: x, cy: y, r: 4.5, class: state.id === current ? "now" : "" });
  }
  return { svg, width };
}

export function drawTree(states, current, verified, handlers) {
  const rows = layout(states), tree = $("tree"), focused = tree.contains(document.activeElement);
  const { svg, width } = drawEdges(rows, current);
  const nodes = rows.map((r) => drawNode(r, current, verified, handlers));
  tree.replaceChildren(svg, ...nodes);
  tree.style.setProperty("--width", width + "px");
  for (const [i, node] of nodes.entries()) node.style.paddingLeft = kLeft + kColumn * rows[i].column + 14 + "px";
  $("count").textContent = states.length + (states.length === 1 ? " state" : " states");
  const now = nodes.find((n) => n.dataset.id === current);
  now?.scrollIntoView({ block: "nearest" });
  if (focused) now?.focus();
}

function drawNode({ state, level }, current, verified, handlers) {
  const what = make("div", { className: "what" }, state.name ? make("b", {}, state.name + " ") : "", (state.role ? state.role + ": " : "") + (state.excerpt || "nothing yet"));
  const below = make("div", { className: "facts" });
  if (verified.has(state.id)) below.append(make("span", { className: "same" }, "✓ same bits"), " · ");
  below.append(facts(state));
  const node = make("div", { className: "node", role: "treeitem", tabIndex: state.id === current ? 0 : -1, draggable: true, title: state.digest }, what, below);
  node.dataset.id = state.id;
  node.setAttribute("aria-level", level);
  node.setAttribute("aria-selected", state.id === current);
  node.addEventListener("click", () => handlers.go(state.id));
  node.addEventListener("dragstart", (e) => e.dataTransfer.setData("text/plain", state.id));
  node.addEventListener("dragover", (e) => { e.preventDefault(); node.classList.add("over"); });
  node.addEventListener("dragleave", () => node.classList.remove("over"));
  node.addEventListener("drop", (e) => {
    e.preventDefault();
    node.classList.remove("over");
    handlers.compare(e.dataTransfer.getData("text/plain"), state.id);
  });
  return node;
}

// Arrows walk along the rows; Enter goes there; letters are operations on the state in focus.
export function treeKeys(handlers) {
  $("tree").addEventListener("keydown", (e) => {
    const nodes = [...$("tree").querySelectorAll(".node")];
    const at = nodes.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: nodes.length - 1 }[e.key];
    if (to !== undefined) {
      e.preventDefault();
      nodes[Math.max(0, Math.min(to, nodes.length - 1))]?.focus();
    } else if (e.key === "Enter" && at >= 0) {
      handlers.go(nodes[at].dataset.id);
    }
  });
}
