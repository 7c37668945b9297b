// Uses the page as a visitor does: the tree of conversations, undoing deletions, Markdown,
// settings, the keyboard, and the layout at several widths. See browser.mjs for how to run it.
import assert from "node:assert/strict";
import { address, browser, end, faults, get, hands, post, states, visitor } from "./browser.mjs";

const page = await visitor();
const { text, until, told, current, now, go, does, set, picture, fill, send, at } = hands(page);
const visible = (selector) => page.$eval(selector, (e) => e.checkVisibility());
const blur = () => page.evaluate(() => document.activeElement.blur());
const key = (k) => blur().then(() => page.keyboard.press(k));
const rows = () => page.$$eval(".node", (all) => all.map((e) => [e.dataset.id, Number(e.getAttribute("aria-level"))]));
const level = async (id) => (await rows()).find(([other]) => other === id)?.[1];
const said = (id) => text(`.node[data-id="${id}"]`);

// ---------------------------------------------------------------- first visit

for (const s of await states()) await fetch(`${address}/v1/states/${s.id}`, { method: "DELETE" });
await page.goto(address);
await page.waitForSelector("#intro:not([hidden])");
assert.equal((await text("#intro-text")).match(/\./g).length, 2); // two sentences
assert.ok(await visible("#welcome"));
await page.click("#intro-close");
await page.reload();
await page.waitForSelector("#welcome:not([hidden])");
assert.ok(!await visible("#intro"));

// A disabled button explains itself, and does so again when it is clicked.
const why = async (button, words) => {
  assert.equal(await page.$eval(button, (e) => e.getAttribute("aria-disabled")), "true", button);
  await page.click(button);
  await told(words);
};
assert.match(await text("#why"), /write a message first/);
for (const button of ["#go", "#step"]) await why(button, "write a message first");
await why("#retry", "no reply");
await why("#back", "No state");

// ---------------------------------------------------------------- the tree shows the conversation

await send("Let a = 3.");
const first = await now(), asked = first.parent;
assert.match(await text("#why"), /The reply has ended/);
for (const button of ["#go", "#step"]) await why(button, "The reply has ended");
await send("What is a?");
const second = await now();
assert.equal(await level(second.id), 3);
assert.match(await said(second.id), /^What is a\?.*3/s);

// A retried reply is beside the one that it replaces; arrows switch between them.
await set("temperature", "3");
await set("top_k", "50");
await set("seed", "11");
await page.click("#retry");
await told("ended by");
const retried = await now();
assert.notEqual(retried.id, second.id);
assert.deepEqual([await level(retried.id), retried.operation.name], [3, "retry"]);
assert.match(await said(retried.id), /retry/);
assert.match(await text("#messages li:last-child .beside"), /2 of 2/);
await page.click('#messages [aria-label="The one before, beside this"]');
await at(second.id);
await go(retried.id);

// The page shows the settings of a drawn reply, and those of the next one.
await until((said) => new RegExp(said).test(document.querySelector("#messages li:last-child .drawn")?.textContent),
  "temperature 3, top-k 50.*seed 11");
assert.match(await text("#settings-set"), /temperature 3 · top-k 50 · seed 11/);
const { sampling } = await get("/v1/states/" + retried.id);
assert.deepEqual([sampling.temperature, sampling.top_k, sampling.seed], [3, 50, 11]);
await page.click("#retry"); // the seed belongs to the state, so the next draw differs
await told("ended by");
assert.equal((await get("/v1/states/" + await current())).sampling.seed, 12);
await page.click("#settings summary");
await page.click("#settings-reset");
assert.deepEqual(await page.$$eval("#temperature, #top_k, #seed", (all) => all.map((e) => [e.value, e.placeholder])),
  [["", "3"], ["", "50"], ["", "12"]]);
await picture("settings");
await set("top_k", "-1");
await page.type("#text", "Not with this.");
await page.keyboard.press("Enter");
await told("Top-k");
assert.equal(await page.$eval("#text", (e) => e.value), "Not with this.");
await set("top_k", "");
await page.$eval("#text", (e) => { e.value = ""; });
await page.click("#settings summary");

// An edited message is beside the original.
await go(second.id);
await page.$$eval('#messages [aria-label="Edit this message"]', (all) => all[2].click());
await fill({ content: "What is a + a?" });
await told("ended by");
const edited = await now();
assert.match(await said(edited.id), /^What is a \+ a\?/);
assert.equal(await level(edited.parent), await level(second.id));
assert.equal((await states()).find((s) => s.id === edited.parent).continues, first.id);

// A shifted or pruned state stays in the place of its conversation.
await go(second.id);
await does("prune");
await fill({ sinks: 4, keep_last: 8, shift: true });
await told(" pruned");
const pruned = await now();
assert.equal(await level(pruned.id), 3);
assert.match(await said(pruned.id), /prune/);

// An uploaded file finds its place by its tokens, even if the server does not know its states.
const file = new Uint8Array(await (await fetch(`${address}/v1/states/${second.id}/snapshot`)).arrayBuffer());
for (const s of [second, pruned]) await fetch(`${address}/v1/states/${s.id}`, { method: "DELETE" });
const uploaded = await (await fetch(address + "/v1/states/upload", {
  method: "POST", headers: { "Content-Type": "application/octet-stream" }, body: file
})).json();
await page.waitForSelector(`.node[data-id="${uploaded.id}"]`); // the page shows states that other clients make
await until((id) =>
  document.querySelector(`.node[data-id="${id}"] .badge`)?.textContent === "not verified", uploaded.id);
assert.equal(await level(uploaded.id), 3);
await go(uploaded.id);
await picture("tree");

// ---------------------------------------------------------------- deleting and undoing

const known = async (id) => (await states()).some((s) => s.id === id);
await go(first.id);
await does("delete");
await page.waitForSelector("dialog[open]");
assert.match(await text("dialog"), /take it back for a minute.*continue it, and keep their place/s);
await page.keyboard.press("Escape");
assert.ok(await known(first.id));
assert.equal(await current(), first.id);
await does("delete");
await fill({});
await told("deleted");
assert.equal(await page.$(`.node[data-id="${first.id}"]`), null);
assert.equal(await level(uploaded.id), 2); // under the parent of the deleted state
assert.ok(await known(first.id));
await picture("deleted");
await page.reload(); // within the minute
await page.waitForSelector("#undo:not([hidden])");
assert.equal(await page.$(`.node[data-id="${first.id}"]`), null);
await page.click("#undo-do");
await told("restored");
assert.deepEqual([await current(), await level(uploaded.id), await visible("#undo")], [first.id, 3, false]);

await does("delete");
await fill({ after: true });
await told("deleted");
assert.deepEqual((await rows()).map(([id]) => id),
  [asked, ...(await states()).filter((s) => s.continues === null && s.id !== asked).map((s) => s.id)]);
await key("z");
await told("restored");
assert.equal(await level(uploaded.id), 3);
const [whole, alone] = [await rows(), (await states()).length];

// After a minute the state is deleted. A page that is loaded later sends pending deletions.
await go(uploaded.id);
await does("delete");
await fill({});
await told("deleted");
await page.evaluate(() => {
  const noted = JSON.parse(localStorage.getItem("deleted"));
  localStorage.setItem("deleted", JSON.stringify(noted.map((b) => ({ ...b, until: 0 }))));
});
await page.reload();
await page.waitForSelector(".node");
await until(() => localStorage.getItem("deleted") === "[]");
assert.deepEqual([await known(uploaded.id), (await states()).length, (await rows()).length],
  [false, alone - 1, whole.length - 1]);

// ---------------------------------------------------------------- search and keyboard

const search = async (words) => {
  await page.keyboard.down("Control");
  await page.keyboard.press("k");
  await page.keyboard.up("Control");
  await page.keyboard.type(words);
};
await search("what + a?");
assert.equal((await rows()).length, 2); // the edited question and its reply
assert.match(await text("#count"), /2 of \d+ states/);
assert.deepEqual([...new Set(await page.$$eval("#tree mark", (all) =>
  all.map((e) => e.textContent.toLowerCase())))].sort(), ["+", "a?", "what"]);
await page.keyboard.press("ArrowDown");
await page.keyboard.press("End");
await page.keyboard.press("Enter");
await at(edited.id);
await search("nothing says this");
assert.match(await text("#no-states"), /No state matches/);
await page.keyboard.press("Escape");
assert.equal((await rows()).length, whole.length - 1);

await page.focus(`.node[data-id="${edited.id}"]`);
await page.keyboard.press("ArrowLeft");
assert.equal(await page.evaluate(() => document.activeElement.dataset.id), edited.parent);
await page.keyboard.press("ArrowRight");
await page.keyboard.press("Enter");
await at(edited.id);
await key("u");
await at(edited.parent);
await key("?");
await page.waitForSelector("dialog[open]");
for (const words of ["Ctrl K", "search in the tree", "undo a deletion", "verify", "Each row is a state"])
  assert.ok((await text("dialog")).includes(words), words);
await picture("help");
await page.keyboard.press("Escape");
await key("/");
assert.equal(await page.evaluate(() => document.activeElement.id), "text");

// ---------------------------------------------------------------- Markdown, code and hostile text

const kHostile = "<img src=x onerror=\"document.title='bad'\"> <script>document.title='bad'</script> " +
  "[a](javascript:document.title='bad') \u202eevil\u2066 \u200f";
const kReply = `# Title\n\nSome **bold**, \`code\` and [a link](https://example.org/x).\n\n` +
  `\`\`\`html\n<b onclick="bad()">\u202e</b>\n\`\`\`\n\n- one\n  - two\n\n` +
  `| a | b |\n|---|--:|\n| 1 | 2 |\n\n${kHostile}`;
const hostile = await post("/v1/states", {
  messages: [{ role: "user", content: kHostile },
    { role: "assistant", content: kReply }, { role: "user", content: kHostile }],
  name: "x \u202e <b>y</b>"
});
await page.waitForSelector(`.node[data-id="${hostile.id}"]`);
await go(hostile.id);
await until(() => document.querySelector("#messages table"));
assert.deepEqual(await page.$$eval("#messages li.assistant .words > *", (all) =>
    all.map((e) => e.localName + (e.className ? "." + e.className : ""))),
  ["h3", "p", "div.code", "ul", "div.wide", "p"]);
assert.deepEqual(await page.$$eval("#messages a", (all) => all.map((a) => [a.href, a.target, a.rel])),
  [["https://example.org/x", "_blank", "noopener noreferrer nofollow"]]);
assert.match(await text("#messages li.assistant"), /a link \(example\.org\)/);
assert.deepEqual(await page.evaluate(() => [
  document.querySelectorAll("#messages :is(img, script), #tree :is(img, script)").length, document.title
]), [0, "stet"]);
for (const place of [
  "#messages li.user .words", "#messages li.assistant .words > p:last-child", `.node[data-id="${hostile.id}"]`
]) {
  const shown = await text(place);
  assert.ok(shown.includes("<script>") || shown.includes("<img"), place);
  assert.ok(shown.includes("U+202E"), place);
}
await does("name"); // a field holds the raw text, so the page describes it
await page.waitForSelector("dialog[open]");
assert.match(await text("dialog"), /one invisible sign/);
await page.keyboard.press("Escape");
await page.click('[data-look="tokens"]');
await page.waitForSelector("#panel .tokens");
assert.equal(await page.evaluate(() =>
  /[\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069]/.test(document.documentElement.innerHTML)), false);
await page.click('[data-look="next"]');

await browser.defaultBrowserContext().overridePermissions(address, []);
await page.browserContext().overridePermissions(
  address, ["clipboard-read", "clipboard-write", "clipboard-sanitized-write"]);
const copied = () => page.evaluate(() => navigator.clipboard.readText());
await page.bringToFront();
await page.click("#messages .code .copy");
await until(() => document.querySelector("#messages .code .copy").textContent === "Copied");
assert.equal(await copied(), '<b onclick="bad()">\u202e</b>');
await page.$eval("#messages li.assistant > .actions .copy", (e) => e.click());
await until(() => document.querySelector("#messages li.assistant > .actions .copy").textContent === "Copied");
assert.equal(await copied(), kReply);
await page.$eval("#as-markdown", (e) => e.click());
assert.equal((await text("#messages li.assistant .words"))
  .replaceAll("U+202E", "\u202e").replaceAll("U+2066", "\u2066").replaceAll("U+200F", "\u200f"), kReply);
await page.$eval("#as-markdown", (e) => e.click());
await picture("markdown");

// ---------------------------------------------------------------- nothing jumps during a reply

await go(first.id);
await set("temperature", "5");
await set("max_tokens", "400");
await set("seed", "3"); // this seed's reply has 268 tokens
await page.evaluate(() => {
  window.shifts = [];
  new PerformanceObserver((list) => window.shifts.push(...list.getEntries().map((e) => [
    e.value, ...e.sources.map((s) => s.node?.id || s.node?.className || s.node?.nodeName)
  ]))).observe({ type: "layout-shift", buffered: false });
});
await page.type("#text", "Tell me everything.");
await page.keyboard.press("Enter");
await until(() => document.querySelector("#messages li.running"));
assert.deepEqual([await visible("#stop"), await visible("#send")], [true, false]);
assert.match(await text("#why"), /Stop or Esc ends it/);
await until(() => document.querySelector("#messages li.running .words").textContent.length > 200);
await told("ended by");
assert.deepEqual(await page.evaluate(() => window.shifts), []);
assert.ok(await page.$eval("#messages", (e) => e.scrollHeight - e.scrollTop - e.clientHeight < 40));

// A user who moves elsewhere during a reply stays there.
await page.click("#retry");
await until(() => document.querySelector("#messages li.running"));
await go(asked);
await told("is there");
assert.equal(await current(), asked);

// ---------------------------------------------------------------- appearance

// Returns texts whose contrast with their background is below 4.5, WCAG's minimum for small text.
const faint = () => page.evaluate(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const d = canvas.getImageData(0, 0, 1, 1).data;
    return [d[0], d[1], d[2], d[3] / 255];
  };
  const light = (c) => c.slice(0, 3).map((v) => v / 255)
    .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const over = (a, b) => [0, 1, 2].map((i) => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
  const behind = (e) =>
    e ? over(rgba(getComputedStyle(e).backgroundColor), behind(e.parentElement)) : [255, 255, 255, 1];
  const found = new Set();
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || !e.checkVisibility({ opacityProperty: true, visibilityProperty: true }) ||
      e.closest(":disabled, .hidden, .tokens, .candidate, table.lens") ||
      getComputedStyle(e).clipPath !== "none") continue;
    const back = behind(e), [a, b] = [light(over(rgba(getComputedStyle(e).color), back)),
      light(back)].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5)
      found.add(`${e.localName}#${e.id}.${e.className} ${((a + 0.05) / (b + 0.05)).toFixed(2)}`);
  }
  return [...found];
});
const wide = () => page.evaluate(() => [document.documentElement, ...document.querySelectorAll("body *")].filter((e) =>
  e.checkVisibility() && !e.closest("svg") &&
  e.getBoundingClientRect().right > innerWidth + 1 && !e.parentElement?.closest("pre, .wide, .node, #settings-set"))
  .map((e) => e.localName + "#" + e.id + "." + e.className));

await go(hostile.id);
for (const theme of ["light", "dark"]) {
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: theme }]);
  for (const width of [1360, 390]) {
    await page.setViewport({ width, height: 780 });
    for (const part of ["states", "look", "talk"]) {
      if (width === 390) await page.click(`[data-show="${part}"]`);
      assert.deepEqual([await faint(), await wide(), await page.evaluate(() => document.documentElement.scrollWidth)],
        [[], [], width], `${theme} ${width} ${part}`);
      if (width === 390) await picture(`phone-${theme}-${part}`);
    }
    await page.click("#settings summary");
    assert.deepEqual([await faint(), await wide()], [[], []], `${theme} ${width} settings`);
    await picture(`${theme}-${width}`);
    await page.click("#settings summary");
  }
}
// On a small screen a row of the tree opens its conversation.
await page.click('[data-show="states"]');
await page.click(`.node[data-id="${asked}"]`);
await at(asked);
assert.deepEqual([await visible("#talk"), await visible("#states")], [true, false]);
// Light or dark can be chosen, and the choice is kept.
const scheme = () => page.evaluate(() => getComputedStyle(document.documentElement).colorScheme);
await page.click("#theme");
assert.equal(await scheme(), "light");
await page.reload();
await page.waitForSelector(".node");
assert.deepEqual([await scheme(), await current()], ["light", asked]); // and so is the state

// ---------------------------------------------------------------- a thousand states

await page.setViewport({ width: 1360, height: 820 });
for (let i = 0; i < 10; ++i) await Promise.all(Array.from({ length: 100 }, () => post(`/v1/states/${asked}/fork`, {})));
await page.reload();
await until(() => document.querySelectorAll(".node").length > 1000);
await go(first.id);
await search("message");
await until(() => document.querySelectorAll(".node").length < 100);

// Another client has deleted these meanwhile.
faults.splice(0, faults.length, ...faults.filter((f) => !f.includes("status of 404")));
await end("conversations: all done");
