// Shows a state, and keeps all parts of the page in step.
import { get } from "./api.js";
import { handlers, page, path, state, trash } from "./app.js";
import { $, bytesText, counted, put, say } from "./dom.js";
import { look } from "./look.js";
import { showMessages } from "./messages.js";
import { showSettings } from "./settings.js";
import { bringIntoView, drawTree } from "./tree.js";

export async function refresh() {
  page.all = (await get("/v1/states")).data;
  relist();
}

// Updates the list after a state was hidden or restored.
export function relist() {
  page.states = page.all.filter((s) => !trash.has(s.id));
  if (!state() && page.current !== "new") page.current = page.states.at(-1)?.id ?? "new";
  return drawTree();
}

// Shows a state; by default refreshes the current one. A reply that is being drawn below it stays in view.
export async function show(id = page.current) {
  trash.keep(id);
  if (page.running && id === page.current) return refresh();
  page.current = id;
  await refresh();
  bringIntoView(document.querySelector('.node[aria-selected="true"]'));
  await showCurrent();
}

export async function showCurrent() {
  const id = page.current, now = state();
  history.replaceState(null, "", now ? "#" + id : location.pathname);
  const whole = now ? await get(path("", id)) : null;
  if (page.current !== id) return;
  page.whole = whole;
  showSettings(whole?.sampling);
  drawButtons();
  await Promise.all([showMessages(), look(page.kind, now, handlers, page.comparison)]);
}

// Returns the reason why nothing can be drawn, or "".
export function whyNot(now = state()) {
  if (page.running) return "A reply is being drawn: Stop or Esc ends it.";
  if (!now) return "Nothing to continue yet: write a message first.";
  if (now.role === "assistant" && !now.open) return "The reply has ended: write a message, or Retry.";
  if (now.role === null && !now.open && now.operation.drawn > 0)
    return "The model has ended this text: add to it below.";
  return "";
}

// Disables a button by aria-disabled, so that it can still be focused and say why.
function able(button, reason) {
  button.setAttribute("aria-disabled", reason !== "");
  button.reason = reason;
  button.title = reason || button.dataset.title;
}

export function drawButtons() {
  const now = state(), why = whyNot(now);
  for (const button of document.querySelectorAll("#operations button")) button.disabled = !now;
  put(document.querySelector('[data-do="pin"]'), now?.pinned ? "Unpin" : "Pin");
  able($("go"), why);
  able($("step"), why);
  able($("retry"), page.running ? why
    : !now ? "There is no reply to draw again yet."
    : now.role !== "assistant" ? "There is no reply here to draw again." : "");
  able($("back"), page.running ? why : back() ? "" : "No state leads to this one.");
  put($("why"), why);
  $("stop").hidden = !page.running;
  $("send").hidden = page.running !== null;
}

// Returns the state from which the current one was made. If that was deleted, returns the state that it continues.
export function back() {
  const now = state(), from = now && page.states.find((s) => s.id === now.parent);
  return from?.id ?? page.rows.find((r) => r.state.id === page.current)?.from ?? null;
}

// Updates the page after the list has changed, since the shown state may be deleted.
export async function followUp() {
  await refresh();
  if (state()?.id !== page.whole?.id) await showCurrent();
}

let changes = null; // counter of the list at the last request

export async function meters() {
  try {
    const s = await get("/v1/status");
    $("key").hidden = true;
    put($("model"), `${s.model} · ${s.contract} · ${s.isa} · ${counted(s.threads, "thread")}`);
    const all = s.reuse.reused + s.reuse.recomputed + s.reuse.new;
    put($("meters"), `${Math.round(s.tokens_per_second)} tokens/s · ` +
      `${bytesText(s.memory.used)} of ${bytesText(s.memory.budget)} · ` +
      `${all ? Math.round(100 * s.reuse.reused / all) : 0} % reused · ${s.running} running`);
    if (page.running) return;
    if (changes !== null && changes !== s.changes) await followUp(); // this page or another client changed the list
    changes = s.changes;
  } catch (error) {
    if (error.status === 401) $("key").hidden = false;
    else say(error.message, true);
  }
}
