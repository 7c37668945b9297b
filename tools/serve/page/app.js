// The state of the page: the states, the current one, and the running reply.
import { remove } from "./api.js";
import { apiKey, kept, markOf } from "./storage.js";
import { Trash } from "./trash.js";

export const page = {
  all: [], // the server's list, in its order
  states: [], // `all` without those deleted here
  rows: [], // their tree
  current: null, // an id; "new": a new conversation
  whole: null, // the current state, as the server describes it
  kind: "next", // the view in the right part
  comparison: null,
  verified: new Set(),
  running: null, // ends the reply that is being drawn
};

// Functions that other modules provide and that the drawing modules call on clicks.
export const handlers = {};

export const trash = new Trash({ storage: kept, client: () => markOf(apiKey()),
  remove: (id) => remove("/v1/states/" + id), changed: () => handlers.deleted?.() });

export const find = (id) => page.states.find((s) => s.id === id) ?? null;
export const state = () => find(page.current);
export const path = (rest = "", id = page.current) => `/v1/states/${id}${rest}`;
// Returns the name of a state in sentences.
export const called = (s) => s.name ?? (s.question || s.excerpt || `${s.tokens} tokens`).replaceAll(/\s+/g, " ");
