// Markdown within a paragraph: a list of strings and {type: "code" | "strong" | "em" | "del" | "link" | "break", …}.
// Takes time linear in the text for any input, and nests no deeper than kDeepest.
const kDeepest = 12, kLongestAddress = 2048, kMostParentheses = 32;
const kPunctuation = /[\p{P}\p{S}]/u, kSpace = /\s/;

// Returns an address that a link may have, or null for other schemes, which stay text.
export function safeAddress(text) {
  if (text.length > kLongestAddress || !/^(https?:\/\/|mailto:)/i.test(text)) return null;
  try {
    return new URL(text).href;
  } catch {
    return null;
  }
}

// Returns the host, or the mail address, of a link whose text does not show it, or "". The text may promise another
// place, so it must be that address or begin with the whole host.
export function placeBeside(text, href) {
  const url = new URL(href), mail = url.protocol === "mailto:", place = mail ? href.slice("mailto:".length) : url.host;
  const shown = text.replace(mail ? /^mailto:/i : /^https?:\/\//i, "");
  const begins = shown.toLowerCase().startsWith(place.toLowerCase()), after = shown.slice(place.length);
  return begins && (after === "" || (!mail && /^[/?#]\S*$/.test(after))) ? "" : place;
}

const textOf = (items) => items.map((i) =>
  typeof i === "string" ? i : i.type === "code" ? i.text : i.children ? textOf(i.children) : "").join("");
const hasLink = (items) => items.some((i) => i.type === "link" || (i.children && hasLink(i.children)));
const depthOf = (items, from = 0) => {
  let most = 0;
  for (let i = from; i < items.length; ++i) most = Math.max(most, items[i].depth ?? 0);
  return most;
};

class Inline {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.items = [];
    this.openers = []; // runs of * _ ~ that may open, with their index in `items`
    this.brackets = []; // index in `items` of each open [
    this.bottom = { "*": 0, "_": 0, "~": 0 }; // below this place no opener of that sign is left
    this.runs = null; // runs of backticks: length -> where they begin
  }

  push(text) {
    if (typeof this.items.at(-1) === "string" && !this.fixed(this.items.length - 1))
      this.items[this.items.length - 1] += text;
    else this.items.push(text);
  }

  // Adds an item for an opener or a bracket. No text may be appended to it.
  fixed(index) {
    return this.openers.at(-1)?.index === index || this.brackets.at(-1)?.index === index;
  }

  parse() {
    const special = /[\\`*_~[\]!\n<]|https?:\/\//gi;
    while (this.at < this.text.length) {
      special.lastIndex = this.at;
      const found = special.exec(this.text)?.index ?? this.text.length;
      if (found > this.at) this.push(this.text.slice(this.at, found));
      this.at = found;
      if (found < this.text.length) this.one(this.text[found]);
    }
    return this.items;
  }

  one(c) {
    if (c === "\\") return this.escape();
    if (c === "`") return this.code();
    if (c === "\n") return this.newline();
    if (c === "[" || (c === "!" && this.text[this.at + 1] === "[")) return this.bracket(c === "!");
    if (c === "]") return this.link();
    if (c === "<" || c === "h" || c === "H") return this.address();
    if (c === "*" || c === "_" || c === "~") return this.run(c);
    this.take(1);
  }

  take(length) {
    this.push(this.text.slice(this.at, this.at + length));
    this.at += length;
  }

  escape() {
    const next = this.text[this.at + 1] ?? "";
    if (next === "\n" || !/[!-/:-@[-`{-~]/.test(next)) return this.take(1);
    this.push(next);
    this.at += 2;
  }

  newline() {
    const last = this.items.length - 1;
    if (typeof this.items[last] === "string" && !this.fixed(last)) this.items[last] = this.items[last].trimEnd();
    this.items.push({ type: "break" });
    this.at += 1;
    while (this.text[this.at] === " ") ++this.at;
  }

  // Ends a code span at the next run of as many backticks.
  code() {
    if (!this.runs) {
      this.runs = new Map();
      for (const { 0: run, index } of this.text.matchAll(/`+/g)) {
        if (!this.runs.has(run.length)) this.runs.set(run.length, { places: [], next: 0 });
        this.runs.get(run.length).places.push(index);
      }
    }
    let length = 1;
    while (this.text[this.at + length] === "`") ++length;
    const same = this.runs.get(length);
    if (!same) return this.take(length); // after an escaped backtick a run is shorter
    while (same.places[same.next] <= this.at) ++same.next;
    const end = same.places[same.next];
    if (end === undefined) return this.take(length);
    let text = this.text.slice(this.at + length, end).replaceAll("\n", " ");
    if (text.startsWith(" ") && text.endsWith(" ") && text.trim()) text = text.slice(1, -1);
    this.items.push({ type: "code", text });
    this.at = end + length;
  }

  bracket(image) {
    this.items.push(image ? "![" : "[");
    this.brackets.push({ index: this.items.length - 1, image });
    this.at += image ? 2 : 1;
  }

  link() {
    const open = this.brackets.pop();
    const goal = open && this.text[this.at + 1] === "(" ? this.destination(this.at + 2) : null;
    if (!goal) return this.take(1);
    const inner = this.items.splice(open.index).slice(1);
    this.cutOpeners(this.openers.findIndex((o) => o.index > open.index));
    const label = textOf(inner) || goal.href,
      children = open.image ? ["image: " + label] : hasLink(inner) || inner.length === 0 ? [label] : inner;
    this.items.push({ type: "link", href: goal.href, children, depth: depthOf(children) + 1 });
    this.brackets = []; // links do not nest
    this.at = goal.end;
  }

  // Parses (address "title"), from the parenthesis on.
  destination(from) {
    const rest = this.text.slice(from, from + kLongestAddress);
    let depth = 0, end = 0;
    for (; end < rest.length && !kSpace.test(rest[end]); ++end) {
      if (rest[end] === "(" && ++depth > kMostParentheses) return null;
      if (rest[end] === ")" && depth-- === 0) break;
    }
    const tail = /^(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/.exec(rest.slice(end));
    const href = tail && safeAddress(rest.slice(0, end).replace(/^<|>$/g, ""));
    return href ? { href, end: from + end + tail[0].length } : null;
  }

  // Parses <https://…> and a bare https://….
  address() {
    const angle = this.text[this.at] === "<", from = this.at + (angle ? 1 : 0);
    const found = /^https?:\/\/[^\s<>"`]+/i.exec(this.text.slice(from, from + kLongestAddress));
    if (!found || (!angle && /\w/.test(this.text[this.at - 1] ?? ""))) return this.take(1);
    if (angle && this.text[from + found[0].length] !== ">") return this.take(1);
    let shown = found[0];
    if (!angle) {
      while (".,:;!?*_~'])".includes(shown.at(-1))) shown = shown.slice(0, -1);
      if (shown.includes("(") && found[0][shown.length] === ")") shown += ")";
    }
    const href = safeAddress(shown);
    if (!href) return this.take(1);
    this.items.push({ type: "link", href, children: [shown] });
    this.at = from + shown.length + (angle ? 1 : 0);
  }

  run(c) {
    let length = 1;
    while (this.text[this.at + length] === c) ++length;
    const before = this.text[this.at - 1] ?? " ", after = this.text[this.at + length] ?? " ";
    const left = !kSpace.test(after) && (!kPunctuation.test(after) || kSpace.test(before) || kPunctuation.test(before));
    const right = !kSpace.test(before) && (!kPunctuation.test(before) ||
      kSpace.test(after) || kPunctuation.test(after));
    const opens = c === "_" ? left && (!right || kPunctuation.test(before)) : left;
    const closes = c === "_" ? right && (!left || kPunctuation.test(after)) : right;
    this.at += length;
    if (length > 3 || (c === "~" && length !== 2)) return this.push(c.repeat(length));
    const rest = closes ? this.close(c, length) : length;
    if (rest === 0) return;
    if (!opens) return this.push(c.repeat(rest));
    this.items.push(c.repeat(rest));
    this.openers.push({ c, length: rest, index: this.items.length - 1 });
  }

  cutOpeners(length) {
    if (length < 0 || length >= this.openers.length) return;
    this.openers.length = length;
    for (const c in this.bottom) this.bottom[c] = Math.min(this.bottom[c], length);
  }

  // Closes the nearest open run of the same sign. Openers in between stay text. Returns the number of signs left.
  close(c, length) {
    while (length > 0) {
      let at = this.openers.length - 1;
      while (at >= this.bottom[c] && this.openers[at].c !== c) --at;
      if (at < this.bottom[c]) {
        this.bottom[c] = this.openers.length; // no later search needs to go below
        return length;
      }
      const opener = this.openers[at];
      const used = opener.length === 3 && length === 3 ? 1 : Math.min(opener.length, length, 2);
      const depth = depthOf(this.items, opener.index + 1) + 1;
      if (depth > kDeepest) {
        this.cutOpeners(0); // all open ones would be deeper still
        return length;
      }
      this.cutOpeners(at + 1);
      while (this.brackets.at(-1)?.index > opener.index) this.brackets.pop();
      const inner = this.items.splice(opener.index + 1);
      opener.length -= used;
      this.items[opener.index] = c.repeat(opener.length);
      if (opener.length === 0) {
        this.cutOpeners(at);
        this.items.pop();
      }
      this.items.push({ type: c === "~" ? "del" : used === 2 ? "strong" : "em", children: inner, depth });
      length -= used;
    }
    return 0;
  }
}

export const parseInline = (text) => new Inline(text).parse();
