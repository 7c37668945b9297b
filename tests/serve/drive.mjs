// The page in a real browser: by clicks and keys, asserted on what stands there and on the bits behind it.
//   node drive.mjs http://127.0.0.1:PORT [FOLDER for screenshots]    needs puppeteer-core and /usr/bin/chromium
import assert from "node:assert/strict";
import { mkdtempSync, readdirSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import puppeteer from "puppeteer-core";

const [address, folder] = process.argv.slice(2);
const browser = await puppeteer.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
const page = await browser.newPage();
const faults = [];
page.on("pageerror", (e) => faults.push(e.message));
page.on("console", (m) => m.type() === "error" && faults.push(m.text()));
await page.setViewport({ width: 1360, height: 820 });

const $text = (selector) => page.$eval(selector, (e) => e.textContent);
const until = (f, ...args) => page.waitForFunction(f, { timeout: 20000 }, ...args);
const told = async (words) => {
  await until((w) => document.getElementById("told").textContent.includes(w), words);
  await page.$eval("#told", (e) => { e.textContent = ""; }); // so that the next one is seen
};
const states = async () => (await (await fetch(address + "/v1/states")).json()).data;
const current = () => page.$eval('.node[aria-selected="true"]', (e) => e.dataset.id);
const state = async () => (await states()).find((s) => s.id === currentId);
let currentId;
const now = async () => { currentId = await current(); return state(); };
const picture = async (name) => folder && page.screenshot({ path: join(folder, name + ".png") });
const does = (what) => page.click(`[data-do="${what}"]`);
async function fill(values) {
  await page.waitForSelector("dialog[open]");
  for (const [name, value] of Object.entries(values)) await page.$eval(`dialog [name="${name}"]`, (e, v) => { e.value = v; }, String(value));
  await page.click('dialog button[value="ok"]');
}
async function send(text) {
  await page.type("#text", text);
  await page.keyboard.press("Enter");
  await told("ended by");
}

await page.goto(address);
await page.click("#new-chat");
await send("Let a = 3.");
assert.match(await $text("#messages"), /a = 3/);
const first = await now();
await send("What is a? Grüße 🙂");
const second = await now();
assert.equal(second.parent, first.id);
assert.match(await $text("#messages"), /Grüße 🙂/);
await picture("conversation");

await does("verify");
await told("same bits");
assert.match(await $text("#tree"), /✓ same bits/);
assert.equal((await state()).digest, second.digest);

await page.click("#retry");
await told("ended by");
await page.focus("#tree .node");
await page.keyboard.press("f");
await told("a fork");
const forked = await now();
assert.equal(forked.digest, (await states()).find((s) => s.id === forked.parent).digest);

await does("rewind");
await fill({ tokens: 10 });
await told("rewound to 10");
assert.equal((await now()).tokens, 10);

await page.click(`.node[data-id="${second.id}"]`);
await until((id) => document.querySelector('.node[aria-selected="true"]')?.dataset.id === id, second.id);
await does("prune");
await fill({ sinks: 4, keep_last: 16 });
await told("positions are seen no more");
const pruned = await now();
assert.equal(pruned.operation.name, "prune");
await page.click('[data-look="tokens"]');
await page.waitForSelector(".tokens .gone");

await page.evaluate((id) => document.querySelector(`.node[data-id="${id}"]`).click(), first.id);
await until((id) => document.querySelector('.node[aria-selected="true"]')?.dataset.id === id, first.id);
await page.evaluate((a, b) => {
  const data = new DataTransfer();
  document.querySelector(`.node[data-id="${a}"]`).dispatchEvent(new DragEvent("dragstart", { dataTransfer: data }));
  document.querySelector(`.node[data-id="${b}"]`).dispatchEvent(new DragEvent("drop", { dataTransfer: data, cancelable: true }));
}, first.id, second.id);
await until(() => document.getElementById("panel").textContent.includes("First difference"));
await picture("compared");

await page.evaluate((a) => {
  const data = new DataTransfer();
  document.querySelector(`.node[data-id="${a}"]`).dispatchEvent(new DragEvent("dragstart", { dataTransfer: data }));
  document.getElementById("talk").dispatchEvent(new DragEvent("drop", { dataTransfer: data, cancelable: true }));
}, first.id);
await told("a fork");
assert.deepEqual([(await now()).parent, (await now()).digest], [first.id, first.digest]);

await does("name");
await fill({ name: "the beginning" });
await told("named");
assert.equal((await state(await current())) !== undefined, true);
await page.keyboard.press("i");
await told("pinned");
assert.ok((await now()).pinned);

await page.click("#messages li.user .who button");
await fill({ content: "Let a = 9." });
await told("ended by");
assert.match(await $text("#messages"), /a = 9/);

await page.click('[data-look="next"]');
await page.click("#new-chat");
await page.$eval("#max_tokens", (e) => { e.value = "1"; });
await send("Let b = 4.");
await page.waitForSelector(".candidate");
const likely = await page.$$eval(".candidate", (all) => Number(all[1].dataset.id));
await (await page.$$(".candidate"))[1].click();
await told("ended by");
const chosen = await now();
assert.equal(chosen.operation.id, likely);
await page.click("#undo");
await until((id) => document.querySelector('.node[aria-selected="true"]')?.dataset.id === id, chosen.parent);
await page.keyboard.press("Escape");
await page.evaluate(() => document.activeElement.blur());
const before = (await now()).tokens;
await page.keyboard.press(".");
await until((n) => document.querySelector('.node[aria-selected="true"] .facts').textContent.includes(n + " tokens"), before + 1);
await picture("next-token");

await page.click('[data-look="elements"]');
await until(() => document.querySelectorAll("#panel tr").length === 14);
await page.click('[data-look="heat"]');
await page.waitForSelector("canvas");
await picture("heat");

await page.click('[data-look="inside"]');
await page.waitForSelector("canvas.map");
const sums = (await (await fetch(`${address}/v1/states/${await current()}/attention?layer=1&head=1`)).json()).values.map((row) => row.reduce((a, b) => a + b));
assert.ok(sums.every((sum) => Math.abs(sum - 1) < 1e-5));
await page.select('select[aria-label="layer"]', "1");
await until(() => document.querySelector("canvas.map").ariaLabel.includes("layer 1"));
await page.focus("canvas.map");
await page.keyboard.press("ArrowLeft");
assert.match(await $text("#panel .told"), /looks at .*%/);
await picture("attention");
await page.select('select[aria-label="picture"]', "lens");
await page.waitForSelector("table.lens");
const best = (await (await fetch(`${address}/v1/states/${await current()}/top?n=1`)).json()).data[0];
assert.equal(await page.$eval("table.lens tbody tr td:last-child", (e) => e.textContent), best.text.replaceAll(" ", "·").replaceAll("\n", "⏎"));
await picture("lens");
await page.select('select[aria-label="picture"]', "norms");
await until(() => document.querySelectorAll("canvas.map").length === 2);
await picture("norms");

// Two states of as many tokens: where is the difference kept?
const twins = [], there = await current();
for (const a of [3, 7]) {
  const made = await (await fetch(address + "/v1/states", { method: "POST", body: JSON.stringify({ messages: [{ role: "user", content: `Let a = ${a}. What is a?` }] }) })).json();
  twins.push((await (await fetch(`${address}/v1/states/${made.id}/continue`, { method: "POST", body: '{"n": 3}' })).json()).state.id);
}
await page.reload();
await page.waitForSelector(`.node[data-id="${twins[1]}"]`);
await page.evaluate((a, b) => {
  const data = new DataTransfer();
  document.querySelector(`.node[data-id="${a}"]`).dispatchEvent(new DragEvent("dragstart", { dataTransfer: data }));
  document.querySelector(`.node[data-id="${b}"]`).dispatchEvent(new DragEvent("drop", { dataTransfer: data, cancelable: true }));
}, ...twins);
await until(() => [...document.querySelectorAll("#panel button")].some((b) => b.textContent.startsWith("Where")));
await page.evaluate(() => [...document.querySelectorAll("#panel button")].find((b) => b.textContent.startsWith("Where")).click());
await until(() => document.getElementById("panel").textContent.includes("comes back"));
await picture("patching");
await page.evaluate((id) => document.querySelector(`.node[data-id="${id}"]`).click(), there);
await until((id) => document.querySelector('.node[aria-selected="true"]')?.dataset.id === id, there);

await page.setOfflineMode(true);
await until(() => !document.getElementById("lost").hidden);
faults.length = 0; // the browser says that nobody answered
await page.setOfflineMode(false);
await until(() => document.getElementById("lost").hidden);
faults.length = 0;

await page.$eval("#max_tokens", (e) => { e.value = "1900"; });
await page.$eval("#temperature", (e) => { e.value = "5"; });
await page.type("#text", "Tell me everything.");
await page.keyboard.press("Enter");
await until(() => !document.getElementById("stop").hidden);
await page.keyboard.press("Escape");
await told("stopped");

const downloads = mkdtempSync(join(tmpdir(), "stet-page-"));
await (await browser.target().createCDPSession()).send("Browser.setDownloadBehavior", { behavior: "allow", downloadPath: downloads });
const saved = await now();
await does("save");
await fill({});
await told("saved");
let file;
for (let i = 0; i < 100 && !file; ++i) {
  file = readdirSync(downloads).find((f) => f.endsWith(".stet"));
  await new Promise((done) => setTimeout(done, 50));
}
await does("delete");
await told("deleted");
await (await page.$("#file")).uploadFile(join(downloads, file));
await told("loaded");
assert.equal((await now()).digest, saved.digest);
await does("verify");
await told("same bits");

// What a state has beyond its parent: a delta, which finds its parent again.
await page.$eval("#max_tokens", (e) => { e.value = "20"; });
await page.$eval("#temperature", (e) => { e.value = ""; });
await send("And more?");
const more = await now();
await does("save");
await page.waitForSelector("dialog[open]");
await page.select('dialog select[name="form"]', "?form=delta&over=" + more.parent);
await page.click('dialog button[value="ok"]');
await told("saved");
for (let i = 0, known = file; i < 100 && file === known; ++i) {
  file = readdirSync(downloads).find((f) => f.endsWith(".stet") && f !== known) ?? known;
  await new Promise((done) => setTimeout(done, 50));
}
await does("delete");
await told("deleted");
await (await page.$("#file")).uploadFile(join(downloads, file));
await told("loaded");
assert.deepEqual([(await now()).digest, (await now()).parent], [more.digest, more.parent]);
faults.splice(0, faults.length, ...faults.filter((f) => !f.includes("status of 400"))); // by which the server said what it is a delta of

await page.click("#theme");
await picture("dark");
await page.setViewport({ width: 390, height: 780 });
await page.click('[data-show="states"]');
await picture("phone-states");
await page.click('[data-show="talk"]');
await picture("phone-talk");
assert.equal(await page.evaluate(() => document.documentElement.scrollWidth > innerWidth), false);
assert.deepEqual(faults, []);
await browser.close();
console.log("the page: all done");
