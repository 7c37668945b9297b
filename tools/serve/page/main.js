// The page: the tree of states, the current one, and its operations.
import { onLost } from "./api.js";
import { handlers, page, state, trash } from "./app.js";
import { $, put, say } from "./dom.js";
import { help, keys, kTree } from "./keys.js";
import { look } from "./look.js";
import { wireMessages } from "./messages.js";
import { begin, beginText, drawUndo, focusPane, load, operations, undoDelete } from "./operations.js";
import { attempt, fit, reply, retry, send } from "./replies.js";
import { wireSettings } from "./settings.js";
import { kept, setApiKey } from "./storage.js";
import { wireTree } from "./tree.js";
import { back, meters, refresh, show } from "./view.js";

const all = (selector) => document.querySelectorAll(selector);
const clicked = (id, action) => $(id).addEventListener("click", action);

// Shows the reason on a click if a button is disabled.
const unless = (action) => (e) => {
  const { reason } = e.currentTarget;
  return reason ? say(reason) : attempt(action);
};

// Forks a state that is dragged onto the conversation.
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

function wireReplies() {
  $("say").addEventListener("submit", (e) => { e.preventDefault(); send(); });
  $("text").addEventListener("keydown", (e) => {
    if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); send(); }
  });
  $("text").addEventListener("input", fit);
  for (const button of all("#replying button")) button.dataset.title = button.title;
  clicked("go", unless(() => reply({})));
  clicked("step", unless(() => reply({ max_tokens: 1 })));
  clicked("retry", unless(retry));
  clicked("back", unless(() => show(back())));
  clicked("stop", () => page.running?.abort());
}

function wireRest() {
  document.addEventListener("keydown", keys);
  for (const b of all("#operations button")) b.addEventListener("click", () => attempt(operations[b.dataset.do]));
  for (const b of all("[data-look]")) b.addEventListener("click", () => {
    page.kind = b.dataset.look;
    look(page.kind, state(), handlers, page.comparison);
  });
  for (const b of all("#tabs button")) b.addEventListener("click", () => focusPane(b.dataset.show));
  clicked("new-chat", () => attempt(begin));
  clicked("new-text", () => attempt(beginText));
  clicked("load", () => $("file").click());
  $("file").addEventListener("change", () => attempt(async () => {
    await load($("file").files[0]).finally(() => { $("file").value = ""; }); // so that it can be chosen again
  }));
  clicked("help", help);
  clicked("undo-do", undoDelete);
  $("key").addEventListener("change", () => { setApiKey($("key").value); attempt(begun); });
  clicked("theme", () => {
    const dark = getComputedStyle(document.documentElement).colorScheme === "dark" || (
      document.documentElement.dataset.theme === undefined && matchMedia("(prefers-color-scheme: dark)").matches);
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    kept.setItem("theme", document.documentElement.dataset.theme);
  });
}

// Shows the explanation of the tree until it is closed.
function introduce() {
  put($("intro-text"), kTree);
  $("intro").hidden = kept.getItem("introduced") !== null;
  clicked("intro-close", () => { $("intro").hidden = true; kept.setItem("introduced", "yes"); });
}

// Asks for the server's numbers, one request at a time: a request to a lost server lasts until it is back.
async function watchServer() {
  for (;;) {
    await new Promise((done) => setTimeout(done, 1500));
    await meters();
  }
}

// Shows the state of the address, or the latest one.
async function begun() {
  trash.reload();
  await trash.send(); // deletions that became due while no page was open
  drawUndo();
  const id = location.hash.slice(1);
  page.current = trash.has(id) ? null : id;
  await show();
}

// Runs once a second: counts down, and sends deletions that are due.
function watchTrash() {
  setInterval(() => {
    drawUndo();
    if (trash.batches.length > 0) trash.send();
  }, 1000);
  window.addEventListener("storage", (e) => { if (e.key === "deleted") { trash.reload(); handlers.deleted(); } });
}

onLost((lost) => { $("lost").hidden = !lost; });
wireTree();
wireMessages();
wireSettings();
dropsFork($("talk"));
wireReplies();
wireRest();
introduce();
focusPane("talk");
await meters();
watchServer();
await attempt(begun);
watchTrash();
