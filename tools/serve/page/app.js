// What the page knows: the states, which of them is shown, and what is going on.
import { remove } from "./api.js";
import { Trash } from "./trash.js";

// A browser may keep nothing; then what is noted lasts as long as the page.
function storage() {
  try {
    localStorage.setItem("kept", "1");
    localStorage.removeItem("kept");
    return localStorage;
  } catch {
    const kept = new Map();
    return { getItem: (k) => kept.get(k) ?? null, setItem: (k, v) => kept.set(k, v), removeItem: (k) => kept.delete(k) };
  }
}
export const kept = storage();

export const page = {
  all: [], // as the server lists them
  states: [], // those of them that were not deleted here
  rows: [], // the tree of these
  current: null, // an id; "new": a conversation that has not begun
  whole: null, // all that the server says of the current state
  kind: "next", // what the right part shows
  comparison: null,
  verified: new Set(),
  running: null, // what ends the reply that is being drawn
};

// Filled by the modules that do these things, called by those that draw what a click is on.
export const handlers = {};

export const trash = new Trash({ storage: kept, remove: (id) => remove("/v1/states/" + id), changed: () => handlers.deleted?.() });

export const find = (id) => page.states.find((s) => s.id === id) ?? null;
export const state = () => find(page.current);
export const path = (rest = "", id = page.current) => `/v1/states/${id}${rest}`;
// What a state is called in a sentence.
export const called = (s) => s.name ?? (s.question || s.excerpt || `${s.tokens} tokens`).replaceAll(/\s+/g, " ");
