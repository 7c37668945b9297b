// Parses Markdown to a tree of blocks: the part of CommonMark that models write, and GitHub's tables. HTML tags are
// text.
//   {type: "paragraph" | "heading", level, inline}   {type: "code", language, text}   {type: "rule"}
//   {type: "quote", blocks}
//   {type: "list", ordered, start, items: [{done, blocks}]}   {type: "table", align, head, rows}
// Takes linear time, since depth is bounded: deeper blocks stay paragraphs. A line of dashes is a rule, never a
// heading, so that nothing jumps while a text arrives.
import { parseInline } from "./inline.js";

const kDeepest = 8;
const blank = (line) => line === undefined || line.trim() === "";
const indent = (line) => line.length - line.trimStart().length;

function fence(line) {
  const found = /^ {0,3}(`{3,}|~{3,})([^`]*)$/.exec(line) ?? /^ {0,3}(~{3,})(.*)$/.exec(line);
  return found && { sign: found[1], language: found[2].trim().split(/\s/)[0] };
}
const closes = (line, sign) =>
  indent(line) < 4 && line.trim().length >= sign.length && [...line.trim()].every((c) => c === sign[0]);
const rule = (line) => /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/.test(line);
const heading = (line) => /^ {0,3}(#{1,6})(?=\s|$)/.exec(line);
const quoted = (line) => /^ {0,3}>/.test(line);

// Returns the marker of a list item: its indentation, where its text begins, and the kind of list.
function marker(line) {
  const found = /^( *)([-*+]|(\d{1,9})([.)]))( +|$)/.exec(line);
  if (!found || rule(line)) return null;
  const [all, space, bullet, number, sign] = found;
  const width = all.length > space.length + bullet.length + 4 ? space.length + bullet.length + 1 : all.length;
  return { indent: space.length, width, kind: sign ?? bullet, ordered: number !== undefined,
    start: Number(number ?? 1) };
}

function cells(line) {
  const all = [];
  let cell = "";
  for (let i = 0, text = line.trim().replace(/^\|/, ""); i < text.length; ++i) {
    if (text[i] === "\\" && text[i + 1] === "|") cell += text[++i];
    else if (text[i] !== "|") cell += text[i];
    else {
      all.push(cell.trim());
      cell = "";
    }
  }
  return cell.trim() === "" && all.length > 0 ? all : [...all, cell.trim()];
}

function alignments(head, line) {
  if (!head.includes("|") || line === undefined || !/^[\s|:-]+$/.test(line) || !line.includes("-")) return null;
  const all = cells(line);
  if (!all.every((c) => /^:?-+:?$/.test(c)) || all.length !== cells(head).length) return null;
  return all.map((c) => c.endsWith(":") ? (c.startsWith(":") ? "center" : "right") : c.startsWith(":") ? "left" : "");
}

class Blocks {
  constructor(lines, depth) {
    this.lines = lines;
    this.depth = depth;
    this.at = 0;
    this.blocks = [];
  }

  get line() { return this.lines[this.at]; }

  parse() {
    while (this.at < this.lines.length) {
      if (blank(this.line)) { ++this.at; continue; }
      const from = this.at;
      const block = this.code() ?? this.heading() ?? this.rule() ?? this.nested() ?? this.table() ?? this.paragraph();
      this.blocks.push({ ...block, from, to: this.at });
    }
    return this.blocks;
  }

  // Returns true if a block other than a paragraph begins here.
  begins() {
    const line = this.line;
    if (fence(line) || heading(line) || rule(line)) return true;
    if (this.depth >= kDeepest) return false;
    const m = marker(line);
    return quoted(line) || (m && m.indent < 4 && (!m.ordered || m.start === 1) && !blank(line.slice(m.width))) ||
      alignments(line, this.lines[this.at + 1]);
  }

  code() {
    const open = fence(this.line);
    if (!open) return indent(this.line) >= 4 ? this.indented() : null;
    const space = indent(this.line), text = [];
    for (++this.at; this.at < this.lines.length && !closes(this.line, open.sign); ++this.at)
      text.push(this.line.slice(Math.min(space, indent(this.line))));
    ++this.at;
    return { type: "code", language: open.language, text: text.join("\n") };
  }

  indented() {
    const text = [];
    for (; this.at < this.lines.length && (blank(this.line) || indent(this.line) >= 4); ++this.at)
      text.push(this.line.slice(4));
    return { type: "code", language: "", text: text.join("\n").trimEnd() };
  }

  heading() {
    const found = heading(this.line);
    if (!found) return null;
    let text = this.lines[this.at++].slice(found[0].length).trim();
    let end = text.length;
    while (text[end - 1] === "#") --end;
    if (end === 0 || text[end - 1] === " ") text = text.slice(0, end).trim();
    return { type: "heading", level: found[1].length, inline: parseInline(text) };
  }

  rule() {
    if (!rule(this.line)) return null;
    ++this.at;
    return { type: "rule" };
  }

  nested() {
    if (this.depth >= kDeepest) return null;
    if (quoted(this.line)) return this.quote();
    return marker(this.line) ? this.list() : null;
  }

  quote() {
    const inner = [];
    for (; this.at < this.lines.length && quoted(this.line); ++this.at) inner.push(this.line.replace(/^ {0,3}> ?/, ""));
    return { type: "quote", blocks: new Blocks(inner, this.depth + 1).parse() };
  }

  list() {
    const first = marker(this.line), items = [];
    for (;;) {
      const m = this.at < this.lines.length ? marker(this.line) : null;
      if (!m || m.kind !== first.kind || m.indent > first.indent + 1 || m.indent < first.indent) break;
      items.push(this.item(m));
      let next = this.at;
      while (next < this.lines.length && blank(this.lines[next])) ++next;
      if (next < this.lines.length && marker(this.lines[next])) this.at = next;
    }
    return { type: "list", ordered: first.ordered, start: first.start, items };
  }

  // Reads a list item. It continues with lines that are indented further than its marker, and with lazy lines of a
  // paragraph.
  item(m) {
    const inner = [this.line.slice(m.width)];
    for (++this.at; this.at < this.lines.length; ++this.at) {
      const line = this.line;
      if (blank(line)) {
        let next = this.at + 1;
        while (next < this.lines.length && blank(this.lines[next])) ++next;
        if (next === this.lines.length || indent(this.lines[next]) < m.indent + 2) break;
        for (; this.at < next; ++this.at) inner.push("");
        --this.at;
        continue;
      }
      if (indent(line) >= m.indent + 2) inner.push(line.slice(Math.min(indent(line), m.width)));
      else if (blank(inner.at(-1)) || marker(line) || this.begins()) break;
      else inner.push(line.trimStart());
    }
    const task = /^\[([ xX])\] /.exec(inner[0]);
    if (task) inner[0] = inner[0].slice(4);
    return { done: task ? task[1] !== " " : null, blocks: new Blocks(inner, this.depth + 1).parse() };
  }

  table() {
    const align = alignments(this.line, this.lines[this.at + 1]);
    if (!align) return null;
    const row = (line) => { const all = cells(line); return align.map((_, i) => parseInline(all[i] ?? "")); };
    const head = row(this.line), rows = [];
    for (this.at += 2; this.at < this.lines.length && !blank(this.line) && this.line.includes("|"); ++this.at)
      rows.push(row(this.line));
    return { type: "table", align, head, rows };
  }

  paragraph() {
    const lines = [this.lines[this.at++].trim()];
    for (; this.at < this.lines.length && !blank(this.line); ++this.at) {
      if (this.begins()) break;
      lines.push(this.line.trim());
    }
    return { type: "paragraph", inline: parseInline(lines.join("\n")) };
  }
}

// Returns the blocks. `from` and `to` are the first and last line of each.
export function parse(text) {
  return new Blocks(linesOf(text), 0).parse();
}

export const linesOf = (text) => text.replaceAll("\r\n", "\n").split("\n").map((line) =>
  line.replace(/^[ \t]+/, (space) => space.replaceAll("\t", "    ")));
