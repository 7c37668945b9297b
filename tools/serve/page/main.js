// The page: one current state, the tree around it, and what a person does with it.
import { download, events, get, onLost, patch, post, remove, upload as uploadFile } from "/page/api.js";
import { $, askFor, bytesText, make, say } from "/page/dom.js";
import { look } from "/page/look.js";
import { drawTree, treeKeys } from "/page/tree.js";

const page = { states: [], current: null, kind: "next", comparison: null, verified: new Set(), running: null };
const state = () => page.states.find((s) => s.id === page.current) ?? null;
const path = (rest = "", id = page.current) => `/v1/states/${id}${rest}`;

// ---------------------------------------------------------------- what stands there

async function refresh() {
  page.states = (await get("/v1/states")).data;
  if (!state()) page.current = page.states.at(-1)?.id ?? null;
  drawTree(page.states, page.current, page.verified, handlers);
}

async function show(id = page.current) {
  page.current = id;
  await refresh();
  await Promise.all([showMessages(), look(page.kind, state(), handlers, page.comparison)]);
  const now = state();
  for (const button of document.querySelectorAll("#operations button, #step")) button.disabled = !now;
  $("go").disabled = !now || (now.role === "assistant" && !now.open);
  $("step").disabled = $("go").disabled;
  $("retry").disabled = !now || now.role !== "assistant";
  $("undo").disabled = !now?.parent;
}

function messageItem(m, editable) {
  const who = make("div", { className: "who" }, m.role);
  if (editable) {
    const edit = make("button", { ariaLabel: "Edit this message" }, "edit");
    edit.addEventListener("click", () => handlers.edit(m));
    who.append(edit);
  }
  return make("li", { className: m.role }, who, make("div", { className: "words" }, m.content));
}

async function showMessages() {
  const list = $("messages");
  if (!page.current) return list.replaceChildren();
  const whole = await get(path());
  if (whole.messages.length > 0) {
    list.replaceChildren(...whole.messages.map((m) => messageItem(m, true)));
  } else {
    const { text } = await post("/detokenize", { tokens: whole.ids, skip_special: true });
    list.replaceChildren(messageItem({ role: "text", content: text }, false));
  }
  list.scrollTop = list.scrollHeight;
}

async function meters() {
  try {
    const s = await get("/v1/status");
    $("model").textContent = `${s.model} · ${s.contract} · ${s.isa} · ${s.threads} threads`;
    const all = s.reuse.reused + s.reuse.recomputed + s.reuse.new;
    $("meters").textContent = `${Math.round(s.tokens_per_second)} tokens/s · ${bytesText(s.memory.used)} of ${bytesText(s.memory.budget)} · ${all ? Math.round(100 * s.reuse.reused / all) : 0} % reused · ${s.running} running`;
  } catch (error) {
    if (error.status === 401) $("key").hidden = false;
  }
}

// ---------------------------------------------------------------- replies

function drawSettings() {
  const settings = {};
  for (const name of ["temperature", "top_p", "seed", "max_tokens"]) {
    if ($(name).value !== "") settings[name] = Number($(name).value);
  }
  return settings;
}

// Streams a reply into the page, and goes to the state after it. Stopped, it goes to what was drawn until then.
async function reply(body, said) {
  const from = page.current, stopper = new AbortController(), start = performance.now();
  let tokens = 0, last = null;
  page.running = stopper;
  $("stop").hidden = false;
  if (said) $("messages").append(messageItem({ role: "user", content: said }, false));
  if (body.retry) $("messages").lastElementChild?.remove();
  const item = state()?.open && !said ? $("messages").lastElementChild : messageItem({ role: "assistant", content: "" }, false);
  if (!item.isConnected) $("messages").append(item);
  try {
    for await (const event of events(path("/continue", from), { ...drawSettings(), ...body }, stopper.signal)) {
      if (event.state) { last = event; break; }
      item.querySelector(".words").append(event.text);
      tokens += event.ids.length;
      say(`${tokens} tokens, ${Math.round(1000 * tokens / (performance.now() - start))} tokens/s`);
      $("messages").scrollTop = $("messages").scrollHeight;
    }
  } catch (error) {
    if (error.name !== "AbortError") say(error.message, true);
    else await stopped(from);
  } finally {
    page.running = null;
    $("stop").hidden = true;
  }
  await (last ? finished(last) : show());
  if (stopper.signal.aborted) say("stopped: Continue goes on with it");
  $("live").textContent = item.querySelector(".words").textContent;
}

// Goes to the state after a reply, and says what that took once it is there.
async function finished(event) {
  const u = event.usage;
  await show(event.state.id);
  say(`${event.ids.length} ${event.ids.length === 1 ? "token" : "tokens"} in ${event.seconds.toFixed(2)} s (${Math.round(event.ids.length / Math.max(event.seconds, 1e-6))} tokens/s) · ${u.reused} reused, ${u.recomputed} recomputed, ${u.new} new · ended by ${event.stop}`);
}

// The server keeps what was drawn; it is the newest child of the state that the reply began from.
async function stopped(from) {
  const known = new Set(page.states.map((s) => s.id));
  for (let i = 0; i < 20; ++i) {
    const fresh = (await get("/v1/states")).data.filter((s) => s.parent === from && !known.has(s.id));
    if (fresh.length > 0) { page.current = fresh.at(-1).id; break; }
    await new Promise((done) => setTimeout(done, 50));
  }
}

// Does something and says what came of it; nothing fails in silence.
async function attempt(action) {
  try {
    await action();
  } catch (error) {
    say(error.message, true);
  }
}

async function made(request, words) {
  const result = await request;
  await show(result.id);
  say(typeof words === "function" ? words(result) : words);
}

// ---------------------------------------------------------------- operations

const operations = {
  fork: () => made(post(path("/fork")), "a fork: the same state, to go another way"),
  async rewind() {
    const v = await askFor("Rewind", [{ label: `To so many tokens (of ${state().tokens})`, name: "tokens", type: "number", value: state().tokens - 1 }]);
    if (v) await handlers.rewindTo(Number(v.tokens));
  },
  async prune() {
    const v = await askFor("Prune the middle", [{ label: "Keep the first (sinks)", name: "sinks", type: "number", value: 4 }, { label: "Keep the last (window)", name: "keep_last", type: "number", value: 64 }, { label: "Move later positions up", name: "shift", type: "checkbox" }]);
    if (v) await made(post(path("/prune"), { sinks: Number(v.sinks), keep_last: Number(v.keep_last), shift: v.shift }), (r) => `${r.pruned} positions are seen no more`);
  },
  async compare() {
    const select = make("select", { name: "other" }, ...page.states.filter((s) => s.id !== page.current).map((s) => make("option", { value: s.id }, `${s.name ?? s.excerpt} (${s.tokens} tokens)`)));
    const v = await askFor("Compare with", [make("label", {}, "Another state", select)]);
    if (v && select.value) await handlers.compare(page.current, select.value);
  },
  async verify() {
    for await (const event of events(path("/verify"), {})) {
      if (event.of) { say(`computing again: ${event.done} of ${event.of} tokens`); continue; }
      if (event.same_bits) page.verified.add(page.current);
      await refresh();
      say(event.same_bits ? `✓ same bits: ${event.tokens} tokens computed again in ${event.seconds.toFixed(2)} s` : `DIFFERENT: ${event.difference}`, !event.same_bits);
    }
  },
  async name() {
    const v = await askFor("Name", [{ label: "What to call it", name: "name", value: state().name ?? "" }]);
    if (v) await made(patch(path(), { name: v.name || null }), "named");
  },
  pin: () => made(patch(path(), { pinned: !state().pinned }), state().pinned ? "no longer pinned" : "pinned: it stays in memory"),
  async save() {
    const parent = page.states.find((s) => s.id === state().parent);
    const forms = [["", "all of it"], ...(parent ? [["?form=delta&over=" + parent.id, "what its parent does not have"]] : []), ["?form=recipe", "its tokens alone"]];
    const select = make("select", { name: "form" }, ...forms.map(([value, text]) => make("option", { value }, text)));
    const v = await askFor("Save to a file", [make("label", {}, "What", select)]);
    if (!v) return;
    const link = make("a", { href: URL.createObjectURL(await download(path("/snapshot" + v.form))), download: (state().name ?? state().id) + ".stet" });
    link.click();
    URL.revokeObjectURL(link.href);
    say("saved: stet resume goes on with it");
  },
  async delete() {
    const parent = state().parent;
    await remove(path());
    await show(parent);
    say("deleted");
  },
};

const handlers = {
  go: (id) => attempt(() => show(id)),
  fork: (id) => attempt(async () => { page.current = id; await operations.fork(); focusPane("talk"); }),
  choose: (id) => attempt(async () => finished(await post(path("/continue"), { n: 1, choose: id }))),
  rewindTo: (tokens) => attempt(() => made(post(path("/rewind"), { tokens }), `rewound to ${tokens} tokens`)),
  compare: (a, b) => attempt(async () => {
    const short = (id) => { const s = page.states.find((x) => x.id === id); return s?.name ?? s?.excerpt ?? id; };
    page.comparison = { diff: await get(path("/diff/" + b, a)), a: short(a), b: short(b), ids: [a, b] };
    page.kind = "diff";
    await look("diff", state(), handlers, page.comparison);
    focusPane("look");
  }),
  edit: (m) => attempt(async () => {
    const v = await askFor("Edit this message", [{ label: m.role, name: "content", value: m.content, rows: 4 }]);
    if (!v) return;
    await made(post(path("/edit"), { message: m.index, content: v.content }), "edited: what followed is in the old state");
    await reply({});
  }),
};

// ---------------------------------------------------------------- what a person does

async function send() {
  const text = $("text").value;
  if (!text.trim() || page.running) return;
  $("text").value = "";
  const now = state();
  try {
    if (now && now.messages === 0) return await reply({ text }, text);
    if (now && now.role !== null) return await reply({ message: { role: "user", content: text } }, text);
    const messages = [...($("system").value ? [{ role: "system", content: $("system").value }] : []), { role: "user", content: text }];
    await made(post("/v1/states", { messages }), "");
    await reply({});
  } catch (error) {
    $("text").value = text; // nothing that was typed is lost
    say(error.message, true);
  }
}

function begin() {
  page.current = "new";
  $("messages").replaceChildren();
  drawTree(page.states, null, page.verified, handlers);
  $("text").focus();
  say("a new conversation begins with what you say");
}

async function beginText() {
  const v = await askFor("New text", [{ label: "The model goes on from it", name: "text", rows: 4 }]);
  if (v?.text) await made(post("/v1/states", { text: v.text }), "Continue goes on with the text");
}

async function upload(file) {
  if (!file) return;
  const { id } = await uploadFile(file).catch((error) => {
    const parent = error.param === "?over" && page.states.find((s) => error.message.includes(s.digest));
    if (!parent) throw error;
    return uploadFile(file, parent.id);
  });
  await show(id);
  say("loaded: Verify computes it again");
}

function focusPane(name) {
  for (const section of document.querySelectorAll("main > section")) section.classList.toggle("shown", section.id === name);
  for (const tab of document.querySelectorAll("#tabs button")) tab.setAttribute("aria-current", tab.dataset.show === name);
}

const kKeys = { f: "fork", r: "rewind", p: "prune", c: "compare", v: "verify", n: "name", i: "pin", s: "save", Delete: "delete" };

function keys(e) {
  const typing = e.target.closest("input, textarea, select, dialog");
  if (e.key === "Escape" && page.running) return page.running.abort();
  if (typing || e.ctrlKey || e.metaKey || e.altKey) return;
  if (e.key === "?") return help();
  if (e.key === "/") { e.preventDefault(); return $("text").focus(); }
  if (e.key === "." && !$("step").disabled) return attempt(() => reply({ n: 1 }));
  if (e.key === "u" && state()?.parent) return handlers.go(state().parent);
  const focused = document.activeElement?.closest?.(".node");
  if (!kKeys[e.key] || !(focused || state())) return;
  e.preventDefault();
  attempt(async () => {
    if (focused && focused.dataset.id !== page.current) await show(focused.dataset.id);
    await operations[kKeys[e.key]]();
  });
}

function help() {
  const rows = [["drag", "a state onto another: compare; onto the conversation: fork"], ["↑ ↓ Enter", "walk the tree, go to a state"], ["/", "say something"], [".", "one token"], ["u", "undo: the parent"], ["Esc", "stop a reply"], ...Object.entries(kKeys)];
  askFor("Keys", [make("table", {}, ...rows.map(([key, what]) => make("tr", {}, make("td", {}, make("kbd", {}, key)), make("td", {}, what))))]);
}

// A state that is dragged onto the conversation goes on there by another way.
function dropsFork(place) {
  place.addEventListener("dragover", (e) => { e.preventDefault(); place.classList.add("over"); });
  place.addEventListener("dragleave", () => place.classList.remove("over"));
  place.addEventListener("drop", (e) => {
    e.preventDefault();
    place.classList.remove("over");
    const id = e.dataTransfer.getData("text/plain");
    if (page.states.some((s) => s.id === id)) handlers.fork(id);
  });
}

function wire() {
  treeKeys(handlers);
  dropsFork($("talk"));
  document.addEventListener("keydown", keys);
  for (const b of document.querySelectorAll("#operations button")) b.addEventListener("click", () => attempt(operations[b.dataset.do]));
  for (const b of document.querySelectorAll("[data-look]")) b.addEventListener("click", () => { page.kind = b.dataset.look; look(page.kind, state(), handlers, page.comparison); });
  for (const b of document.querySelectorAll("#tabs button")) b.addEventListener("click", () => focusPane(b.dataset.show));
  $("say").addEventListener("submit", (e) => { e.preventDefault(); send(); });
  $("text").addEventListener("keydown", (e) => { if (e.key === "Enter" && !e.shiftKey) { e.preventDefault(); send(); } });
  $("go").addEventListener("click", () => attempt(() => reply({})));
  $("step").addEventListener("click", () => attempt(() => reply({ n: 1 })));
  $("retry").addEventListener("click", () => attempt(async () => reply({ retry: true, seed: (await get(path())).sampling.seed + 1 })));
  $("undo").addEventListener("click", () => handlers.go(state().parent));
  $("stop").addEventListener("click", () => page.running?.abort());
  $("new-chat").addEventListener("click", begin);
  $("new-text").addEventListener("click", () => attempt(beginText));
  $("load").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", () => attempt(() => upload($("file").files[0])));
  $("help").addEventListener("click", help);
  $("key").addEventListener("change", () => { sessionStorage.setItem("key", $("key").value); location.reload(); });
  $("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  localStorage.setItem("theme", name);
}

onLost((lost) => { $("lost").hidden = !lost; });
theme(localStorage.getItem("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
wire();
focusPane("talk");
await meters();
setInterval(meters, 1500);
await attempt(show);
