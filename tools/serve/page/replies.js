// Replies: streaming, stopping, and drawing again.
import { events, get, post } from "./api.js";
import { called, find, page, path, state } from "./app.js";
import { $, counted, say } from "./dom.js";
import { beginReply } from "./messages.js";
import { nextSeed, readSettings } from "./settings.js";
import { drawButtons, refresh, show, whyNot } from "./view.js";

// Runs an operation and reports its result or error.
export async function attempt(action) {
  try {
    await action();
  } catch (error) {
    say(error.message, true);
  }
}

const pace = (tokens, seconds) => `${Math.round(tokens / Math.max(seconds, 1e-6))} tokens/s`;

// Streams a reply to the current state, and shows the state after it. If stopped, shows the state with the tokens drawn
// so far.
export async function reply(body, said) {
  if (page.running) throw new Error(whyNot());
  const request = { ...readSettings(), ...body }, from = page.current, before = state(), start = performance.now();
  const stopper = page.running = new AbortController(), shown = beginReply(said, body.retry);
  let tokens = 0, last = null, error = null;
  drawButtons();
  try {
    for await (const event of events(path("/continue", from), request, stopper.signal)) {
      if (event.state) { last = event; break; }
      shown.add(event.text);
      tokens += event.ids.length;
      say(`${counted(tokens, "token")}, ${pace(tokens, (performance.now() - start) / 1000)}`);
    }
  } catch (caught) {
    error = caught;
  }
  shown.end();
  page.running = null;
  const to = last?.state.id ?? (error?.name === "AbortError" ? await stopped(from) : from);
  const stayed = page.current === from;
  if (stayed) await show(to);
  else await leftBehind(to);
  if (error && error.name !== "AbortError") throw error;
  if (!stayed) return;
  if (last) finished(last, before, body);
  else if (error) say("stopped: Continue resumes the reply");
}

// Reports a reply whose state the user left while it was drawn.
async function leftBehind(id) {
  await refresh();
  drawButtons();
  if (find(id)) say(`the reply to “${called(find(id))}” is there`);
}

function finished(event, before, body) {
  const u = event.usage, same = body.retry && before?.id === event.state.id;
  say(`${counted(event.ids.length, "token")} in ${event.seconds.toFixed(2)} s ` +
    `(${pace(event.ids.length, event.seconds)}) · ` +
    `${u.reused} reused, ${u.recomputed} recomputed, ${u.new} new · ended by ${event.stop}` +
    (same ? ". The reply is the same: at temperature 0 the likeliest token is always taken." : ""));
}

// Finds the state of a stopped reply: the newest one made from the state at its beginning.
async function stopped(from) {
  const known = new Set(page.all.map((s) => s.id));
  for (let i = 0; i < 20; ++i) {
    const fresh = (await get("/v1/states")).data.filter((s) => s.parent === from && !known.has(s.id));
    if (fresh.length > 0) return fresh.at(-1).id;
    await new Promise((done) => setTimeout(done, 50));
  }
  return from;
}

// Continues a state with one token that the user has chosen.
export async function choose(id, from) {
  const before = find(from),
    event = await post(path("/continue", from), { ...readSettings(), max_tokens: 1, choose: id });
  await show(event.state.id);
  finished(event, before, {});
}

// Waits for nothing before the reply begins, so that a second click finds it running.
export async function retry() {
  const settings = readSettings(), seed = page.whole?.sampling?.seed;
  await reply({ retry: true,
    seed: settings.seed !== undefined && settings.seed !== seed ? settings.seed : nextSeed(seed) });
}

export async function send() {
  const text = $("text").value, now = state();
  if (!text.trim()) return;
  if (page.running) return say(whyNot());
  write("");
  try {
    if (!now) await beginConversation(text);
    else await reply(now.role === null ? { text } : { message: { role: "user", content: text } }, text);
  } catch (error) {
    if (!$("text").value) write(text); // keeps the typed text
    say(error.message, true);
  }
}

async function beginConversation(text) {
  const messages = [...($("system").value ? [{ role: "system", content: $("system").value }] : []),
    { role: "user", content: text }];
  const { max_tokens, ...settings } = readSettings();
  const { id } = await post("/v1/states", { messages, ...settings });
  await show(id);
  if (page.current === id) await attempt(() => reply({}));
}

function write(text) {
  $("text").value = text;
  fit();
}

// Grows the field with its text, up to a third of the page (style.css).
export function fit() {
  $("text").style.height = "auto";
  $("text").style.height = $("text").scrollHeight + 2 + "px";
}
