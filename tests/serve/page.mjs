// Tests the parts of the page that need no browser: Markdown, control characters, the layout of the
// tree, undoing deletions, requests.
//   node page.mjs FOLDER    (tools/serve/page)
import assert from "node:assert/strict";
import { cpSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";

// Node loads a .js file as a module only next to a package.json that says so.
const folder = mkdtempSync(join(tmpdir(), "stet-page-"));
after(() => rmSync(folder, { recursive: true }));
cpSync(process.argv[2], folder, { recursive: true });
writeFileSync(join(folder, "package.json"), '{"type": "module"}');
const { parse } = await import(join(folder, "markdown.js"));
const { parseInline, placeBeside, safeAddress } = await import(join(folder, "inline.js"));
const { countSigns, pieces, plain } = await import(join(folder, "signs.js"));
const { beside, continuations, finds, layout, line, wordsOf } = await import(join(folder, "layout.js"));
const { Trash } = await import(join(folder, "trash.js"));
const { markOf } = await import(join(folder, "storage.js"));
const { get, onLost } = await import(join(folder, "api.js"));
const { largest, redrawing } = await import(join(folder, "dom.js"));
const { kindOf } = await import(join(folder, "messages.js"));

// ---------------------------------------------------------------- Markdown

// Returns a parse as short text, without positions.
const short = (items) => items.map((i) =>
  typeof i === "string" ? i : i.type === "break" ? "/"
  : `${i.type}(${i.text ?? (i.href ? i.href + " " : "") + short(i.children)})`).join("");
const inline = (text) => short(parseInline(text));
const block = (b) => {
  if (b.type === "code") return `code[${b.language}|${b.text}]`;
  if (b.type === "quote") return `quote[${blocks(b.blocks)}]`;
  if (b.type === "list") return `${b.ordered ? b.start : "-"}[` +
    `${b.items.map((i) => (i.done === null ? "" : i.done ? "x" : "o") + blocks(i.blocks)).join(";")}]`;
  if (b.type === "table")
    return `table[${b.align.join(",")}|${[b.head, ...b.rows].map((r) => r.map(short).join(",")).join("|")}]`;
  if (b.type === "rule") return "rule";
  return (b.type === "heading" ? "h" + b.level : "p") + `(${short(b.inline)})`;
};
const blocks = (list) => list.map(block).join(" ");
const markdown = (text) => blocks(parse(text));

test("emphasis", () => {
  for (const [text, expected] of [
    ["a *b* **c** ***d*** ~~e~~", "a em(b) strong(c) strong(em(d)) del(e)"],
    ["_a_ __b__ snake_case_name", "em(a) strong(b) snake_case_name"],
    ["2 * 3 * 4, a*b*c", "2 * 3 * 4, aem(b)c"],
    ["**open", "**open"],
    ["**a *b** c*", "em(em(a em(b)) c)"],
    ["*a **b** c*", "em(a strong(b) c)"],
    ["\\*no\\* \\a", "*no* \\a"],
    ["**Note [1]: x**", "strong(Note [1]: x)"],
    ["*see [1*", "em(see [1)"],
    ["~one~ ****four****", "~one~ ****four****"],
    ["one\ntwo  \nthree", "one/two/three"],
  ]) assert.equal(inline(text), expected, text);
});

test("code in a line", () => {
  for (const [text, expected] of [
    ["`a*b*` and ``c`d``", "code(a*b*) and code(c`d)"],
    ["` `` ` and `open", "code(``) and `open"],
    ["a ``` b", "a ``` b"],
    ["\\`a` b`", "`acode( b)"],
  ]) assert.equal(inline(text), expected, text);
});

test("links lead to the web and to mail alone", () => {
  for (const [text, expected] of [
    ["[a](https://e.org/x_(y))", "link(https://e.org/x_(y) a)"],
    ['[**a**](<https://e.org> "title")', "link(https://e.org/ strong(a))"],
    ["![alt](https://e.org/i.png)", "link(https://e.org/i.png image: alt)"],
    ["see https://e.org/a_b_c, or (http://e.org/).",
      "see link(https://e.org/a_b_c https://e.org/a_b_c), or (link(http://e.org/ http://e.org/))."],
    ["<https://e.org/> <b>", "link(https://e.org/ https://e.org/) <b>"],
    ["[https://bank.org](https://e.org)", "link(https://e.org/ https://bank.org)"],
    ["[a](javascript:alert(1)) [b](data:text/html,x) [c](vbscript:x) [d]( java\tscript:x)",
      "[a](javascript:alert(1)) [b](data:text/html,x) [c](vbscript:x) [d]( java\tscript:x)"],
    ["[a](//e.org) [b](/v1/states) [c][1]", "[a](//e.org) [b](/v1/states) [c][1]"],
    ["xhttps://e.org", "xhttps://e.org"],
  ]) assert.equal(inline(text), expected, text);
  for (const bad of [
    "javascript:x", " javascript:x", "file:///etc", "https://", "blob:x", "https://" + "a".repeat(3000)
  ]) assert.equal(safeAddress(bad), null, bad.slice(0, 20));
});

test("a link shows where it leads, unless its text is that address", () => {
  for (const [text, href, expected] of [
    ["a link", "https://e.org/x", "e.org"],
    ["https://e.org/x_(y)", "https://e.org/x_(y)", ""],
    ["E.org", "https://e.org/", ""],
    ["e.org?a=1", "http://e.org/?a=1", ""],
    ["https://e.org:8080/x", "https://e.org:8080/x", ""],
    ["https://bank.com", "https://bank.co/", "bank.co"],
    ["https://bank.com.evil.org", "https://bank.com/", "bank.com"],
    ["https://bank.com.evil.org", "https://evil.org/", "evil.org"],
    ["https://bank.com/?via=evil.org", "https://evil.org/", "evil.org"],
    ["https://e.org@bank.com", "https://e.org/", "e.org"],
    ["https://bank.com@e.org", "https://bank.com@e.org/", "e.org"],
    ["e.org/ at bank.com", "https://e.org/", "e.org"],
    ["https://b\u0430nk.com", "https://xn--bnk-5cd.com/", "xn--bnk-5cd.com"],
    ["mail us", "mailto:help@e.org", "help@e.org"],
    ["help@bank.com", "mailto:x@evil.org", "x@evil.org"],
    ["help@e.org", "mailto:help@e.org", ""],
    ["mailto:help@e.org", "mailto:help@e.org", ""],
    ["help@e.org", "mailto:help@e.org?cc=x@evil.org", "help@e.org?cc=x@evil.org"],
    ["help@e.org.com", "mailto:help@e.org", "help@e.org"],
  ]) assert.equal(placeBeside(text, href), expected, `[${text}](${href})`);
});

test("blocks", () => {
  for (const [text, expected] of [
    ["# A #\n## B\n#no\ntext", "h1(A) h2(B) p(#no/text)"],
    ["a\n---\nb", "p(a) rule p(b)"],
    ["```py\nx = 1\n\n*y*\n```\nz", "code[py|x = 1\n\n*y*] p(z)"],
    ["a\n```\nopen", "p(a) code[|open]"],
    ["~~~\n```\n~~~", "code[|```]"],
    ["````\n```\n````", "code[|```]"],
    ["    four\n      six\n\nb", "code[|four\n  six] p(b)"],
    ["> a\n> > b\n\nc", "quote[p(a) quote[p(b)]] p(c)"],
    ["- a\n- b\n  - c\n  - d\n- e", "-[p(a);p(b) -[p(c);p(d)];p(e)]"],
    ["1. a\n   ```\n   x\n   ```\n2. b\n\n   more\n\n3. c", "1[p(a) code[|x];p(b) p(more);p(c)]"],
    ["7) a\n8) b", "7[p(a);p(b)]"],
    ["- a\n    - b\n        - c", "-[p(a) -[p(b) -[p(c)]]]"],
    ["1. a\n  - b\n2. c", "1[p(a) -[p(b)];p(c)]"],
    ["- [ ] a\n- [x] b", "-[op(a);xp(b)]"],
    ["* a\n+ b", "-[p(a)] -[p(b)]"],
    ["In 1986. was\n2. not a list\n1. but this", "p(In 1986. was/2. not a list) 1[p(but this)]"],
    ["text\n-", "p(text/-)"],
    ["- a\nlazy\n\nb", "-[p(a/lazy)] p(b)"],
    ["| a | b |\n|:--|--:|\n| *1* | 2 \\| 3 |\n| 4 |\nend", "table[left,right|a,b|em(1),2 | 3|4,] p(end)"],
    ["a | b\nc | d", "p(a | b/c | d)"],
    ["<script>alert(1)</script>\n<img src=x onerror=y>", "p(<script>alert(1)</script>/<img src=x onerror=y>)"],
    ["a\r\nb\r\n\r\nc", "p(a/b) p(c)"],
    ["", ""], ["\n \n", ""],
  ]) assert.equal(markdown(text), expected, text);
});

test("no text is lost", () => {
  const letters = (text) => text.replaceAll(/[^a-z]/g, "");
  let seed = 1;
  const draw = (n) => (seed = (seed * 48271) % 2147483647) % n;
  const bits = ["*", "**", "_", "`", "```", "~~", "[", "](", ")", "> ", "- ", "1. ", "# ",
    "|", "\n", "\n\n", "    ", "a", "b", " c ", "!", "<", "\\", "|-|-|\n"];
  for (let i = 0; i < 3000; ++i) {
    const text = Array.from({ length: draw(30) }, () => bits[draw(bits.length)]).join("");
    const got = [];
    const walk = (v) => {
      if (typeof v === "string") got.push(v);
      else if (Array.isArray(v)) v.forEach(walk);
      else if (v && typeof v === "object") [v.text, v.children, v.inline, v.head, v.rows,
        v.items, v.blocks, v.language].forEach(walk);
    };
    const parsed = parse(text);
    walk(parsed);
    const count = (t, c) => t.split(c).length;
    // Cells beyond a table's columns and words after a fence's language are dropped, as in other
    // renderers.
    if (!/```|~~~|\|/.test(text)) for (const c of "abc")
      assert.equal(count(letters(got.join("")), c), count(letters(text), c), JSON.stringify(text));
    assert.ok(parsed.every((b, k) => b.to > b.from && b.from >= (parsed[k - 1]?.to ?? 0)));
  }
});

test("hostile texts take no longer than others", () => {
  const n = 20000;
  const hostile = ["*a ", "_a *b ", "**a", "a* ", "[", "![", "](", "[](", "[a](b ", "`", "`a``b", "<",
    "<http://", "http://a", "> ", "- ", "1. ", "#", "|", "|a",
    "~~a ", "\\", "\n", "- \n", "```\n", "a\n-\n", "   - a\n", " ", "[a](((((", "*a **b ", "a** b*", "_*~~"];
  for (const piece of hostile) {
    for (const text of [piece.repeat(n), piece.repeat(n) + piece.repeat(n).split("").reverse().join("")]) {
      const start = process.cpuUsage();
      parse(text);
      const { user } = process.cpuUsage(start);
      assert.ok(user < 2e6, `${JSON.stringify(piece)}: ${user} µs`);
    }
  }
});

test("nesting is bounded", () => {
  const depth = (v) => v && typeof v === "object" ? 1 + Math.max(0, ...Object.values(v).map(depth)) : 0;
  for (const text of [">".repeat(5000) + "a", "- ".repeat(5000) + "a", "*a _b ".repeat(2000) + "_ *".repeat(2000)])
    assert.ok(depth(parse(text)) < 100);
});

// ---------------------------------------------------------------- control characters

test("what nobody sees is shown", () => {
  assert.deepEqual(pieces("a\u202eb"), ["a", { sign: "U+202E", name: "right-to-left override" }, "b"]);
  assert.equal(plain("\u2066x\u2069\u200b\u{e0041}\u0007"), "⟨U+2066⟩x⟨U+2069⟩⟨U+200B⟩⟨U+E0041⟩⟨U+0007⟩");
  for (const code of [0x061c, 0x200e, 0x200f, 0x202a, 0x202b, 0x202c, 0x202d, 0x202e, 0x2066, 0x2067, 0x2068, 0x2069])
    assert.equal(countSigns(String.fromCodePoint(code)), 1, code.toString(16));
  for (const text of ["", "Grüße 🙂", "👩‍👩‍👧", "مرحبا", "a\tb\nc", "می‌خواهم"]) assert.deepEqual(pieces(text), [text]);
});

test("a role of a file is no class of the page", () => {
  assert.deepEqual(["user", "assistant", "system", null, "text", "hidden", "running assistant hidden", "User", ""]
    .map(kindOf), ["user", "assistant", "system", "text", "other", "other", "other", "other", "other"]);
});

// ---------------------------------------------------------------- pictures

test("the largest number of a table is found, however large the table is", () => {
  assert.equal(largest([[1, -3], [2]]), 3);
  assert.equal(largest([]), 1e-9);
  assert.equal(largest(Array.from({ length: 512 }, () => Array(256).fill(0.5))), 0.5);
});

test("of several answers the last one asked for is shown", async () => {
  globalThis.document = { activeElement: null };
  const place = { contains: () => false, replaceChildren: (...parts) => { place.shown = parts; } };
  const answers = [];
  const draw = redrawing(place, () => new Promise((done, fail) => answers.push({ done, fail })), (e) => [e.message]);
  const calls = [draw(), draw()];
  answers[1].done(["second"]);
  answers[0].done(["first"]);
  await Promise.all(calls);
  assert.deepEqual(place.shown, ["second"]);
  calls.push(draw(), draw());
  answers[3].fail(new Error("fourth"));
  answers[2].fail(new Error("third"));
  await Promise.all(calls);
  assert.deepEqual(place.shown, ["fourth"]);
});

// ---------------------------------------------------------------- the tree

const made = (id, continues, more = {}) => ({
  id, continues, operation: { name: "continue" }, question: null,
  excerpt: "", name: null, digest: "sha256:" + id, ...more
});
const drawn = (rows) => rows.map((r) => " ".repeat(r.column) + r.state.id).join("\n");
const kStates = [made("asked", null), made("reply", "asked"), made("more", "reply"), made("other", null),
  made("retry", "reply"), made("after", "more")];

test("an only continuation stands below, several stand beside each other", () => {
  const rows = layout(kStates);
  assert.equal(drawn(rows), "asked\nreply\n more\n after\n retry\nother");
  assert.deepEqual(rows.map((r) => [r.level, r.position, r.siblings, r.from]),
    [[1, 1, 2, null], [2, 1, 1, "asked"], [3, 1, 2, "reply"], [4, 1, 1, "more"], [3, 2, 2, "reply"], [1, 2, 2, null]]);
  assert.deepEqual([...line(rows, "after")], ["after", "more", "reply", "asked"]);
  assert.deepEqual(continuations(rows, "reply").map((s) => s.id), ["more", "after", "retry"]);
  assert.deepEqual(continuations(rows, "gone"), []);
  assert.deepEqual(beside(rows, "more").map((s) => s.id), ["more", "retry"]);
  assert.deepEqual(beside(rows, "other"), []);
});

test("what continues a state that is hidden keeps its place", () => {
  const hidden = new Set(["reply", "more"]);
  assert.equal(drawn(layout(kStates, (s) => !hidden.has(s.id))), "asked\n retry\n after\nother");
  assert.equal(drawn(layout(kStates.filter((s) => s.id !== "asked").map((s) =>
    s.id === "reply" ? { ...s, continues: null } : s))), "reply\n more\n after\n retry\nother");
});

test("a deep tree is laid out", () => {
  const deep = Array.from({ length: 20000 }, (_, i) => made("s" + i, i > 0 ? "s" + (i - 1) : null));
  const rows = layout(deep);
  assert.equal(rows.length, 20000);
  assert.equal(rows.at(-1).column, 0);
  assert.equal(layout(deep, (s) => s.id === "s0" || s.id === "s19999").at(-1).from, "s0");
});

test("a search looks at the name, the question and the reply", () => {
  const s = made("st_1", null, { name: "Start", question: "What is a?", excerpt: "a is 3.", pinned: true });
  for (const words of ["start", "WHAT a?", "is 3", "st_1", "pinned", " "]) assert.ok(finds(wordsOf(words), s), words);
  for (const words of ["end", "what b?"]) assert.ok(!finds(wordsOf(words), s), words);
});

// ---------------------------------------------------------------- deletions

function bin({ storage = new Map(), fail = () => null, client = () => "" } = {}) {
  const log = [], clock = { now: 1000 };
  const trash = new Trash({
    storage: { getItem: (k) => storage.get(k) ?? null, setItem: (k, v) => storage.set(k, v) },
    remove: async (id) => { const error = fail(id); if (error) throw error; log.push(id); },
    changed: () => {}, client, now: () => clock.now,
  });
  return { trash, log, clock, storage };
}

test("a deletion can be taken back for a minute, and is sent after it", async () => {
  const { trash, log, clock } = bin();
  trash.put(["b", "a"], "a");
  clock.now += 20000;
  trash.put(["c"], "c");
  await trash.send();
  assert.deepEqual([log, trash.has("a"), trash.has("x"), trash.latest().seconds], [[], true, false, 60]);
  assert.deepEqual(trash.undo(), ["c"]);
  assert.equal(trash.latest().label, "a");
  clock.now += 40000;
  assert.equal(trash.latest(), null);
  assert.deepEqual(trash.undo(), []);
  await trash.send();
  assert.deepEqual([log, trash.has("a")], [["a", "b"], false]);
});

test("another page knows of it, and sends what has become due", async () => {
  const { trash, clock, storage } = bin();
  trash.put(["a"], "a");
  const next = bin({ storage });
  assert.ok(next.trash.has("a"));
  next.clock.now = clock.now + 60000;
  await next.trash.send();
  assert.deepEqual(next.log, ["a"]);
  trash.reload();
  assert.ok(!trash.has("a"));
});

test("a state that is made again is kept", async () => {
  const { trash, log, clock } = bin();
  trash.put(["a", "b"], "a");
  trash.keep("a");
  trash.keep("b");
  assert.equal(trash.latest(), null);
  clock.now += 60000;
  await trash.send();
  assert.deepEqual(log, []);
});

test("what the server does not have is done, what it does not answer is tried again", async () => {
  let error = null;
  const { trash, log, clock } = bin({ fail: () => error });
  trash.put(["a"], "a");
  clock.now += 60000;
  error = new Error("The server did not answer.");
  await trash.send();
  assert.ok(trash.has("a"));
  await trash.send(); // after a delay
  assert.ok(trash.has("a"));
  clock.now += 5000;
  error = Object.assign(new Error("gone"), { status: 404 });
  await trash.send();
  assert.deepEqual([log, trash.has("a")], [[], false]);
});

test("a page with another key leaves a deletion alone", async () => {
  assert.deepEqual([markOf(""), markOf("a"), markOf("key of Anna") === markOf("key of Bert")], ["", "e40c292c", false]);
  const unknown = Object.assign(new Error("there is no state of this client"), { status: 404 });
  const anna = bin({ client: () => "anna" }), { storage } = anna;
  const bert = bin({ storage, client: () => "bert", fail: () => unknown });
  anna.trash.put(["a"], "secret");
  bert.trash.reload();
  assert.deepEqual([bert.trash.has("a"), bert.trash.latest(), bert.trash.undo()], [false, null, []]);
  bert.trash.put(["b"], "b");
  bert.trash.keep("a");
  for (const { trash, clock } of [bert, anna]) {
    clock.now += 60000;
    trash.reload();
    await trash.send();
  }
  assert.deepEqual([anna.log, JSON.parse(storage.get("deleted"))], [["a"], []]);
});

test("a note without a client is of a page without a key", async () => {
  const storage = new Map([["deleted", '[{"ids": ["a"], "label": "a", "until": 1000}]']]);
  const keyed = bin({ storage, client: () => "anna" }), other = bin({ storage });
  for (const { trash } of [keyed, other]) await trash.send();
  assert.deepEqual([keyed.log, other.log], [[], ["a"]]);
});

test("a note that cannot be read is no note", () => {
  for (const text of ["{", "3", '[{"ids": 3}]', "null"])
    assert.deepEqual(bin({ storage: new Map([["deleted", text]]) }).trash.batches, []);
});

// ---------------------------------------------------------------- requests

test("a browser that refuses storage does not look like a lost server", async () => {
  for (const name of ["localStorage", "sessionStorage"])
    Object.defineProperty(globalThis, name, { configurable: true, get() { throw new Error("SecurityError"); } });
  const { apiKey, kept, setApiKey } = await import(join(folder, "storage.js") + "?blocked");
  assert.equal(apiKey(), "");
  setApiKey("secret");
  kept.setItem("theme", "dark");
  assert.deepEqual([apiKey(), kept.getItem("theme"), kept.getItem("other")], ["secret", "dark", null]);
  const told = [];
  onLost((lost) => told.push(lost));
  globalThis.fetch = async () => Response.json({ ok: 1 });
  assert.deepEqual([await get("/v1/status"), told], [{ ok: 1 }, [false]]);
});
