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
