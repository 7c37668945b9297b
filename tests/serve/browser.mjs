// A browser on the server's page, shared by the programs that drive it.
//   node PROGRAM http://127.0.0.1:PORT [FOLDER for screenshots]    needs puppeteer-core and /usr/bin/chromium
import assert from "node:assert/strict";
import { join } from "node:path";
import puppeteer from "puppeteer-core";

export const [address, folder] = process.argv.slice(2);
export const browser = await puppeteer.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
export const faults = [];

// Opens the page in a new browser profile, as on a first visit.
export async function visitor({ width = 1360, height = 820 } = {}) {
  const page = await (await browser.createBrowserContext()).newPage();
  page.on("pageerror", (e) => faults.push(e.message));
  page.on("console", (m) => m.type() === "error" && faults.push(m.text()));
  page.on("request", (r) => !r.url().startsWith(address) && !/^(data|blob):/.test(r.url()) &&
    faults.push("asked " + r.url()));
  await page.setViewport({ width, height });
  return page;
}

// Access the same server with fetch.
export const get = async (path) => (await fetch(address + path)).json();
export const post = async (path, body) => (await fetch(address + path, {
  method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body)
})).json();
export const states = async () => (await get("/v1/states")).data;

export function hands(page) {
  const text = (selector) => page.$eval(selector, (e) => e.textContent);
  const until = (f, ...args) => page.waitForFunction(f, { timeout: 20000 }, ...args).catch(async (error) => {
    const told = await text("#told");
    throw new Error(`${error.message}: ${f} of ${JSON.stringify(args)}; ` +
      `the page says “${told}”, and of faults ${JSON.stringify(faults)}`, { cause: error });
  });
  const told = async (words) => {
    await until((w) => document.getElementById("told").textContent.includes(w), words);
    await page.$eval("#told", (e) => { e.textContent = ""; }); // so that the next message is noticed
  };
  const current = () => page.$eval('.node[aria-selected="true"]', (e) => e.dataset.id);
  const at = (id) => until((i) => document.querySelector('.node[aria-selected="true"]')?.dataset.id === i, id);
  return {
    text, until, told, current, at,
    now: async () => { const id = await current(); return (await states()).find((s) => s.id === id); },
    go: async (id) => { await page.$eval(`.node[data-id="${id}"]`, (e) => e.click()); await at(id); },
    does: (what) => page.click(`[data-do="${what}"]`),
    set: (id, value) => page.$eval("#" + id, (e, v) => { e.value = v; e.dispatchEvent(new Event("input")); }, value),
    picture: async (name) => folder && page.screenshot({ path: join(folder, name + ".png") }),
    fill: async (values) => {
      await page.waitForSelector("dialog[open]");
      for (const [name, value] of Object.entries(values)) {
        await page.$eval(`dialog [name="${name}"]`, (e, v) => {
          if (e.type === "checkbox") e.checked = v;
          else e.value = v;
        }, value);
      }
      await page.click('dialog button[value="ok"]');
    },
    send: async (words) => {
      await page.type("#text", words);
      await page.keyboard.press("Enter");
      await told("ended by");
    },
    drag: (from, onto) => page.evaluate((a, b) => {
      const data = new DataTransfer();
      document.querySelector(`.node[data-id="${a}"]`).dispatchEvent(
        new DragEvent("dragstart", { dataTransfer: data, bubbles: true }));
      document.querySelector(b).dispatchEvent(
        new DragEvent("drop", { dataTransfer: data, cancelable: true, bubbles: true }));
    }, from, onto),
  };
}

export async function end(words) {
  assert.deepEqual(faults, []);
  await browser.close();
  console.log(words);
}
