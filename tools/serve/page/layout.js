// The tree of states as rows, independent of the page.

// Returns the rows from top to bottom: {state, level, column, from, siblings, position}. `from` is the id of the
// parent. A state's parent is the nearest shown state that it continues. An only child is placed straight below its
// parent. Several children are placed one step further in, beside each other, in the order of their creation.
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
  const row = (siblings, level, column, from) =>
    siblings.map((state, i) => ({ state, level, column, from, siblings: siblings.length, position: i + 1 }));
  const rows = [], stack = row(roots, 1, 0, null).reverse(); // no recursion: a long conversation is a deep tree
  while (stack.length > 0) {
    const top = stack.pop(), next = below.get(top.state.id) ?? [];
    rows.push(top);
    stack.push(...row(next, top.level + 1, top.column + (next.length > 1 ? 1 : 0), top.state.id).reverse());
  }
  return rows;
}

// Returns the ids of a state and its ancestors.
export function line(rows, id) {
  const from = new Map(rows.map((r) => [r.state.id, r.from])), ids = new Set();
  for (let at = from.has(id) ? id : null; at; at = from.get(at)) ids.add(at);
  return ids;
}

// Returns all states that continue a state, without itself.
export function continuations(rows, id) {
  const from = rows.findIndex((r) => r.state.id === id);
  let to = from + 1;
  while (from >= 0 && to < rows.length && rows[to].level > rows[from].level) ++to;
  return rows.slice(from + 1, from < 0 ? 0 : to).map((r) => r.state);
}

// Returns the states with the same parent, in order. Returns none for the beginning of a conversation.
export function beside(rows, id) {
  const from = rows.find((r) => r.state.id === id)?.from;
  return from ? rows.filter((r) => r.from === from).map((r) => r.state) : [];
}

// Returns the words of a search.
export const wordsOf = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);

// Returns true if the row of a state contains every word.
export function finds(words, s) {
  const text = [s.name, s.question, s.excerpt, s.operation.name, s.id, s.digest,
    s.pinned ? "pinned" : ""].join("\n").toLowerCase();
  return words.every((w) => text.includes(w));
}
