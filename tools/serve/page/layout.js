// The tree of states as rows, without a page: which state stands under which, and how far in.

// Returns the rows from top to bottom: {state, level, column, from, siblings, position}, where `from` is the state above in the tree.
// A state hangs under the nearest one that is shown of those that it continues. An only continuation stands straight below; several
// stand one step further in, beside each other, in the order in which they were made.
export function layout(states, isShown = () => true) {
  const byId = new Map(states.map((s) => [s.id, s])), shownAbove = new Map();
  const above = (s) => {
    const walked = [];
    let at = byId.get(s.continues);
    while (at && !isShown(at) && !shownAbove.has(at.id)) {
      walked.push(at.id);
      at = byId.get(at.continues);
    }
    const found = at ? (isShown(at) ? at : shownAbove.get(at.id)) : null;
    for (const id of walked) shownAbove.set(id, found);
    return found;
  };
  const below = new Map(), roots = [];
  for (const s of states) {
    if (!isShown(s)) continue;
    const parent = above(s);
    if (!parent) roots.push(s);
    else if (below.has(parent.id)) below.get(parent.id).push(s);
    else below.set(parent.id, [s]);
  }
  const row = (siblings, level, column, from) => siblings.map((state, i) => ({ state, level, column, from, siblings: siblings.length, position: i + 1 }));
  const rows = [], stack = row(roots, 1, 0, null).reverse(); // a stack of its own: a long conversation is a deep tree
  while (stack.length > 0) {
    const top = stack.pop(), next = below.get(top.state.id) ?? [];
    rows.push(top);
    stack.push(...row(next, top.level + 1, top.column + (next.length > 1 ? 1 : 0), top.state.id).reverse());
  }
  return rows;
}

// The ids of a state and of all above it.
export function line(rows, id) {
  const from = new Map(rows.map((r) => [r.state.id, r.from])), ids = new Set();
  for (let at = from.has(id) ? id : null; at; at = from.get(at)) ids.add(at);
  return ids;
}

// All that continues a state, itself left out.
export function continuations(rows, id) {
  const from = rows.findIndex((r) => r.state.id === id);
  let to = from + 1;
  while (from >= 0 && to < rows.length && rows[to].level > rows[from].level) ++to;
  return rows.slice(from + 1, from < 0 ? 0 : to).map((r) => r.state);
}

// The states under the same one, in their order; none where it begins a conversation.
export function beside(rows, id) {
  const from = rows.find((r) => r.state.id === id)?.from;
  return from ? rows.filter((r) => r.from === from).map((r) => r.state) : [];
}

// The words of a search.
export const wordsOf = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);

// Each word has to stand somewhere in what a row says of its state.
export function finds(words, s) {
  const text = [s.name, s.question, s.excerpt, s.operation.name, s.id, s.digest, s.pinned ? "pinned" : ""].join("\n").toLowerCase();
  return words.every((w) => text.includes(w));
}
