// The conversation of the current state, and the reply being drawn.
import { post } from "./api.js";
import { handlers, page, state } from "./app.js";
import { $, copyButton, make, put } from "./dom.js";
import { beside } from "./layout.js";
import { showMarkdown } from "./render.js";
import { drawnWith } from "./settings.js";

const kNear = 40; // pixels from the end within which the list follows new text
let follows = true;

// Keeps the end in view while a reply grows, unless the user has scrolled up.
function follow() {
  if (follows) $("messages").scrollTop = $("messages").scrollHeight;
}

function showWords(item) {
  const words = item.querySelector(".words");
  if (item.markdown && $("as-markdown").checked) {
    words.classList.add("markdown");
    showMarkdown(words, item.raw);
  } else {
    words.classList.remove("markdown");
    put(words, item.raw);
  }
}

function fill(item, text) {
  if (item.raw === text && item.querySelector(".words").hasChildNodes()) return;
  item.raw = text;
  showWords(item);
}

function button(text, label, action) {
  const made = make("button", { type: "button", ariaLabel: label }, text);
  made.addEventListener("click", action);
  return made;
}

// Returns the class of a message. A role of an uploaded file may be any text, even a class that hides the message.
export const kindOf = (role) =>
  role === null ? "text" : ["user", "assistant", "system"].includes(role) ? role : "other";

// Makes the item of a message; its role is null for raw text.
function newItem(role, text) {
  const item = make("li", { className: kindOf(role) }, make("div", { className: "who" }, role ?? "text"),
    make("div", { className: "words", dir: "auto" }), make("div", { className: "actions" }));
  item.role_ = role;
  item.markdown = role === "assistant";
  item.raw = "";
  fill(item, text);
  return item;
}

// Returns buttons that switch between the siblings of the current state.
function alternatives() {
  const all = beside(page.rows, page.current), at = all.findIndex((s) => s.id === page.current);
  if (all.length < 2) return null;
  const to = (step, text, label) => {
    const b = button(text, label, () => handlers.go(all[at + step].id));
    b.disabled = !all[at + step];
    return b;
  };
  return make("span", { className: "beside" }, to(-1, "‹", "The one before, beside this"), `${at + 1} of ${all.length}`,
    to(1, "›", "The next one, beside this"));
}

function drawActions(item, message, id, last) {
  const parts = [copyButton(() => item.raw, "Copy this message")];
  if (message) parts.push(button("Edit", "Edit this message", () => handlers.edit(message, id)));
  if (last) parts.push(alternatives());
  if (last && message?.role === "assistant" && message.generated !== false && page.whole?.sampling)
    parts.push(make("span", { className: "drawn" }, drawnWith(page.whole.sampling)));
  put(item.querySelector(".actions"), ...parts);
}

// Shows the messages of page.whole. Items with unchanged text keep their elements.
export async function showMessages() {
  const list = $("messages"), whole = page.whole;
  $("welcome").hidden = whole !== null;
  if (!whole) return list.replaceChildren();
  const talk = whole.messages.length > 0;
  const shown = talk ? whole.messages
    : [{ role: null, content: (await post("/detokenize", { tokens: whole.ids, skip_special: true })).text }];
  if (whole !== page.whole) return; // another state is shown meanwhile
  const items = shown.map((m, i) => {
    const old = list.children[i];
    const item = old?.role_ === m.role && (old.raw === m.content || !old.done) ? old : newItem(m.role, m.content);
    fill(item, m.content);
    item.done = true;
    drawActions(item, talk ? m : null, whole.id, i === shown.length - 1);
    return item;
  });
  if (items.length !== list.children.length || items.some((item, i) => item !== list.children[i])) {
    list.replaceChildren(...items);
    follows = true;
  }
  follow();
}

// Adds an item for a reply, and returns functions to fill it. `said` is the user's message; `replaces` removes the last
// reply.
export function beginReply(said, replaces) {
  const list = $("messages");
  $("welcome").hidden = true;
  follows = true;
  for (const actions of list.querySelectorAll("li:last-child .actions"))
    put(actions, copyButton(() => actions.parentElement.raw, "Copy this message"));
  if (said !== undefined && state()?.role !== null) list.append(newItem("user", said));
  if (replaces) list.lastElementChild?.remove();
  let item = list.lastElementChild;
  const goesOn = item && (item.role_ === null || (item.role_ === "assistant" &&
    state()?.open && said === undefined && !replaces));
  if (!goesOn) list.append(item = newItem("assistant", ""));
  if (item.role_ === null && said !== undefined) fill(item, item.raw + said);
  item.done = false;
  item.classList.add("running");
  let text = item.raw, waiting = false;
  const draw = () => { waiting = false; fill(item, text); follow(); };
  follow();
  return {
    add(piece) {
      text += piece;
      if (!waiting) requestAnimationFrame(draw);
      waiting = true;
    },
    end() {
      draw();
      item.classList.remove("running");
      $("live").textContent = item.querySelector(".words").textContent;
    },
  };
}

export function wireMessages() {
  const list = $("messages");
  list.addEventListener("scroll", () => {
    follows = list.scrollHeight - list.scrollTop - list.clientHeight < kNear;
    $("newest").hidden = follows;
  });
  $("newest").addEventListener("click", () => { follows = true; follow(); });
  new ResizeObserver(follow).observe(list);
  $("as-markdown").addEventListener("change", () => { for (const item of list.children) showWords(item); follow(); });
}
