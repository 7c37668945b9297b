// Operates on states on the page and inspects them, with clicks and keys. Asserts the page's
// content and the bits behind it. See browser.mjs for how to run it.
import assert from "node:assert/strict";
import { mkdtempSync, readdirSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { address, browser, end, faults, get, hands, post, states, visitor } from "./browser.mjs";

const page = await visitor();
const { text, until, told, current, now, go, does, set, picture, fill, send, drag, at } = hands(page);

await page.goto(address);
await page.click("#new-chat");
await send("Let a = 3.");
assert.match(await text("#messages"), /a = 3/);
const first = await now();
await send("What is a? Grüße 🙂");
const second = await now();
assert.equal(second.parent, first.id);
assert.match(await text("#messages"), /Grüße 🙂/);
await picture("conversation");

await does("verify");
await told("same bits");
assert.match(await text('.node[aria-selected="true"]'), /✓ same bits/);
assert.equal((await now()).digest, second.digest);

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

await go(second.id);
await does("prune");
await fill({ sinks: 4, keep_last: 16 });
await told(" pruned");
const pruned = await now();
assert.equal(pruned.operation.name, "prune");
await page.click('[data-look="tokens"]');
await page.waitForSelector(".tokens .gone");

await go(first.id);
await drag(first.id, `.node[data-id="${second.id}"]`);
await until(() => document.getElementById("panel").textContent.includes("First difference"));
await picture("compared");

await drag(first.id, "#talk");
await told("a fork");
assert.deepEqual([(await now()).parent, (await now()).digest], [first.id, first.digest]);

await does("name");
await fill({ name: "the beginning" });
await told("named");
assert.equal((await now()).name, "the beginning");
await page.keyboard.press("i");
await told("pinned");
assert.ok((await now()).pinned);

await page.click('#messages li.user [aria-label="Edit this message"]');
await fill({ content: "Let a = 9." });
await told("ended by");
assert.match(await text("#messages"), /a = 9/);

await page.click('[data-look="next"]');
await page.click("#new-chat");
await set("max_tokens", "1");
await send("Let b = 4.");
await page.waitForSelector(".candidate");
const likely = await page.$$eval(".candidate", (all) => Number(all[1].dataset.id));
await (await page.$$(".candidate"))[1].click();
await told("ended by");
const chosen = await now();
assert.equal(chosen.operation.id, likely);
await page.click("#back");
await at(chosen.parent);
await page.keyboard.press("Escape");
await page.evaluate(() => document.activeElement.blur());
const before = (await now()).tokens;
await page.keyboard.press(".");
await until((n) =>
  document.querySelector('.node[aria-selected="true"] .facts').textContent.includes(n + " tokens"), before + 1);
await picture("next-token");

await page.click('[data-look="elements"]');
await until(() => document.querySelectorAll("#panel tr").length === 14);
await page.click('[data-look="heat"]');
await page.waitForSelector("canvas");
await picture("heat");

await page.click('[data-look="inside"]');
await page.waitForSelector("canvas.map");
const sums = (await get(`/v1/states/${await current()}/attention?layer=1&head=1`)).values.map((row) =>
  row.reduce((a, b) => a + b));
assert.ok(sums.every((sum) => Math.abs(sum - 1) < 1e-5));
await page.select('select[aria-label="layer"]', "1");
await until(() => document.querySelector("canvas.map").ariaLabel.includes("layer 1"));
await page.focus("canvas.map");
await page.keyboard.press("ArrowLeft");
assert.match(await text("#panel .told"), /looks at .*%/);
await picture("attention");
await page.select('select[aria-label="picture"]', "lens");
await page.waitForSelector("table.lens");
const best = (await get(`/v1/states/${await current()}/top?n=1`)).data[0];
assert.equal(await page.$eval("table.lens tbody tr td:last-child", (e) => e.textContent),
  best.text.replaceAll(" ", "·").replaceAll("\n", "⏎"));
await picture("lens");
await page.select('select[aria-label="picture"]', "norms");
await until(() => document.querySelectorAll("canvas.map").length === 2);
await picture("norms");

// Two states of equal length; the page shows the parts in which they differ.
const twins = [], there = await current();
for (const a of [3, 7]) {
  const made = await post("/v1/states", { messages: [{ role: "user", content: `Let a = ${a}. What is a?` }] });
  twins.push((await post(`/v1/states/${made.id}/continue`, { n: 3 })).state.id);
}
await page.reload();
await page.waitForSelector(`.node[data-id="${twins[1]}"]`);
await drag(twins[0], `.node[data-id="${twins[1]}"]`);
await until(() => [...document.querySelectorAll("#panel button")].some((b) => b.textContent.startsWith("Where")));
await page.evaluate(() => [...document.querySelectorAll("#panel button")]
  .find((b) => b.textContent.startsWith("Where")).click());
await until(() => document.getElementById("panel").textContent.includes("comes back"));
await picture("patching");
await go(there);

await page.setOfflineMode(true);
await until(() => !document.getElementById("lost").hidden);
faults.length = 0; // drops the browser's report of failed requests
await page.setOfflineMode(false);
await until(() => document.getElementById("lost").hidden);
faults.length = 0;

await set("max_tokens", "1900");
await set("temperature", "5");
let stopped = false;
for (let tries = 0; tries < 10 && !stopped; ++tries) { // a reply may end by itself before the key is pressed
  await page.type("#text", "Tell me everything.");
  await page.keyboard.press("Enter");
  await until(() => !document.getElementById("stop").hidden ||
    document.getElementById("told").textContent.includes("ended by"));
  await page.keyboard.press("Escape");
  await until(() => /stopped|ended by/.test(document.getElementById("told").textContent));
  stopped = (await page.$eval("#told", (e) => e.textContent)).includes("stopped");
  await page.$eval("#told", (e) => { e.textContent = ""; });
}
assert(stopped);

const downloads = mkdtempSync(join(tmpdir(), "stet-page-"));
await (await browser.target().createCDPSession()).send("Browser.setDownloadBehavior", {
  behavior: "allow", downloadPath: downloads, browserContextId: page.browserContext().id
});
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
await fill({});
await told("deleted");
await (await page.$("#file")).uploadFile(join(downloads, file));
await told("loaded");
assert.equal((await now()).digest, saved.digest);
await does("verify");
await told("same bits");

// Saves only the difference to the parent, as a delta, which finds its parent again.
await set("max_tokens", "20");
await set("temperature", "");
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
await fill({});
await told("deleted");
await (await page.$("#file")).uploadFile(join(downloads, file));
await told("loaded");
assert.deepEqual([(await now()).digest, (await now()).parent], [more.digest, more.parent]);
// A 400 response names the parent of the delta.
faults.splice(0, faults.length, ...faults.filter((f) => !f.includes("status of 400")));

await end("what is done to states: all done");
