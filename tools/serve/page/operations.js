// Operations on a state. Each makes another one; the old one stays. While a dialog is open, a reply may end
// and the page go on to the next state. The operation still applies to the state for which it was called.
import { download, events, get, patch, post, upload as uploadFile } from "./api.js";
import { called, find, handlers, page, path, state, trash } from "./app.js";
import { askFor } from "./dialog.js";
import { $, counted, make, put, say } from "./dom.js";
import { continuations } from "./layout.js";
import { look } from "./look.js";
import { attempt, choose, reply } from "./replies.js";
import { plain } from "./signs.js";
import { drawButtons, refresh, relist, show, showCurrent } from "./view.js";

async function made(request, words) {
  const result = await request;
  await show(result.id);
  say(typeof words === "function" ? words(result) : words);
  return result.id;
}

// Changes a state's name or pin. The page stays where it is.
async function change(id, fields, words) {
  await patch(path("", id), fields);
  await refresh();
  drawButtons();
  say(words);
}

export const operations = {
  fork: () => made(post(path("/fork")), "a fork of the state, which can be continued differently"),
  async rewind() {
    const { id, tokens } = state();
    const v = await askFor("Rewind", [{ label: `Number of tokens to keep (of ${tokens})`, name: "tokens",
      type: "number", min: 0, max: tokens, value: tokens - 1, required: true }], { ok: "Rewind" });
    if (v) await handlers.rewindTo(Number(v.tokens), id);
  },
  async prune() {
    const { id } = state();
    const v = await askFor("Prune the middle", [
      { label: "Keep the first (sinks)", name: "sinks", type: "number", min: 0, value: 4, required: true },
      { label: "Keep the last (window)", name: "keep_last", type: "number", min: 0, value: 64, required: true },
      { label: "Move later positions up", name: "shift", type: "checkbox" }], { ok: "Prune" });
    if (v) await made(post(path("/prune", id), { sinks: Number(v.sinks), keep_last: Number(v.keep_last),
      shift: v.shift }), (r) => `${counted(r.pruned, "position")} pruned`);
  },
  async compare() {
    const { id } = state(), others = page.states.filter((s) => s.id !== id);
    if (others.length === 0) return say("there is no other state to compare with");
    const select = make("select", { name: "other" }, ...others.map((s) =>
      make("option", { value: s.id }, plain(`${called(s)} (${s.operation.name}, ${counted(s.tokens, "token")})`))));
    const v = await askFor("Compare with", [make("label", {}, "Another state", select)], { ok: "Compare" });
    if (v) await handlers.compare(id, v.other);
  },
  async verify() {
    const { id } = state();
    for await (const event of events(path("/verify"), {})) {
      if (event.of) { say(`computing again: ${event.done} of ${event.of} tokens`); continue; }
      if (event.same_bits) page.verified.add(id);
      await refresh();
      const partly = `${event.proved.blocks} of ${event.proved.of} blocks match their tokens; ` +
        `from position ${event.proved.from} on nothing is proved: ${event.proved.reason}`;
      say(!event.same_bits && event.difference === null ? partly
        : event.same_bits ? `✓ same bits: ${event.tokens} tokens computed again in ${event.seconds.toFixed(2)} s`
        : `DIFFERENT: ${event.difference}`, event.difference !== null);
    }
  },
  async name() {
    const { id, name } = state();
    const v = await askFor("Name", [{ label: "Name", name: "name", value: name ?? "" }]);
    if (v) await change(id, { name: v.name || null }, v.name ? "named" : "without a name");
  },
  pin() {
    const { id, pinned } = state();
    return change(id, { pinned: !pinned }, pinned ? "no longer pinned" : "pinned: no limit of the server deletes it");
  },
  async save() {
    const now = state(), parent = find(now.parent);
    const forms = [["", "all of it"],
      ...(parent ? [["?form=delta&over=" + parent.id, "only what its parent lacks"]] : []),
      ["?form=recipe", "only its tokens"]];
    const select = make("select", { name: "form" }, ...forms.map(([value, text]) => make("option", { value }, text)));
    const v = await askFor("Save to a file", [make("label", {}, "What", select)], { ok: "Save" });
    if (!v) return;
    const name = plain(now.name ?? now.id).replaceAll(/[\\/:*?"<>|\s]+/g, " ").trim() || now.id;
    const link = make("a", { href: URL.createObjectURL(await download(path("/snapshot" + v.form, now.id))),
      download: name + ".stet" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000); // the browser may read it later
    say("saved: stet resume continues from the file");
  },
  async delete() {
    const now = state(), after = continuations(page.rows, now.id),
      from = page.rows.find((r) => r.state.id === now.id)?.from;
    const what = make("p", { className: "quoted" }, make("span", { dir: "auto" }, called(now)),
      now.role === "assistant" ? make("span", { dir: "auto" }, now.excerpt) : null);
    const more = after.length === 0 ? ""
      : after.length === 1 ? " One state continues it, and keeps its place."
      : ` ${after.length} states continue it, and keep their place.`;
    const fields = [what, make("p", {}, `You can take it back for a minute.${more}`),
      ...(after.length > 0 ? [{ label: after.length === 1 ? "Delete that one, too"
        : `Delete these ${after.length}, too`, name: "after", type: "checkbox" }] : [])];
    const v = await askFor("Delete this state?", fields, { ok: "Delete", danger: true });
    if (!v) return;
    const gone = v.after ? [...after.map((s) => s.id), now.id] : [now.id];
    if (gone.includes(page.current)) page.current = v.after ? from : from ?? after[0]?.id ?? null;
    trash.put(gone, called(now));
    say("deleted: it can be taken back for a minute");
  },
};

Object.assign(handlers, {
  go: (id) => attempt(() => show(id)),
  open: (id) => attempt(async () => { focusPane("talk"); await show(id); }),
  fork: (id) => attempt(async () => { page.current = id; await operations.fork(); focusPane("talk"); }),
  choose: (token, id) => attempt(() => choose(token, id)),
  rewindTo: (tokens, id) => attempt(() => made(post(path("/rewind", id), { tokens }), `rewound to ${tokens} tokens`)),
  compare: (a, b) => attempt(async () => {
    page.comparison = { diff: await get(path("/diff/" + b, a)), a: called(find(a)), b: called(find(b)), ids: [a, b] };
    page.kind = "diff";
    await look("diff", state(), handlers, page.comparison);
    focusPane("look");
  }),
  edit: (m, id) => attempt(async () => {
    const v = await askFor("Edit this message", [{ label: m.role, name: "content", value: m.content, rows: 6 }],
      { ok: m.role === "user" ? "Save and reply" : "Save", wide: true });
    if (!v) return;
    const edited = await made(post(path("/edit", id), { message: m.index, content: v.content }),
      "edited: the messages after it are in the old state");
    if (m.role === "user" && page.current === edited) await reply({});
  }),
  // Called after the trash has changed, on this page or another one.
  deleted: () => attempt(async () => {
    relist();
    drawUndo();
    if (state()?.id !== page.whole?.id && !page.running) await showCurrent();
  }),
});

export function drawUndo() {
  const latest = trash.latest();
  $("undo").hidden = !latest;
  if (!latest) return;
  put($("undo-what"), `Deleted “${latest.label}”${latest.ids.length > 1 ? ` and ${latest.ids.length - 1} more` : ""}`);
  put($("undo-left"), `${latest.seconds} s`);
}

export const undoDelete = () => attempt(async () => {
  const ids = trash.undo();
  if (ids.length === 0) return;
  await show(ids.at(-1));
  say("restored");
});

export async function beginText() {
  const v = await askFor("New text", [{ label: "Text for the model to continue", name: "text", rows: 4 }],
    { ok: "Begin", wide: true });
  if (v?.text) await made(post("/v1/states", { text: v.text }), "Continue draws what follows the text");
}

export function begin() {
  page.current = "new";
  focusPane("talk");
  $("text").focus();
  return showCurrent().then(() => { relist(); say("write a message to begin a new conversation"); });
}

// Uploads a file. A delta states its parent's digest, which identifies the state to upload it over.
export async function load(file) {
  if (!file) return;
  const { id } = await uploadFile(file).catch((error) => {
    const parent = error.param === "?over" && page.states.find((s) => error.message.includes(s.digest));
    if (!parent) throw error;
    return uploadFile(file, parent.id);
  });
  await show(id);
  say("loaded: Verify computes the state again");
}

export function focusPane(name) {
  for (const section of document.querySelectorAll("main > section"))
    section.classList.toggle("shown", section.id === name);
  for (const tab of document.querySelectorAll("#tabs button"))
    tab.setAttribute("aria-current", tab.dataset.show === name);
}
