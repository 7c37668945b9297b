// Shows Markdown. Creates all elements itself; text of a model is never parsed as HTML.
import { copyButton, make } from "./dom.js";
import { placeBeside } from "./inline.js";
import { linesOf, parse } from "./markdown.js";

function inline(items) {
  return items.map((item) => {
    if (typeof item === "string") return item;
    if (item.type === "break") return make("br");
    if (item.type === "code") return make("code", {}, item.text);
    if (item.type !== "link") return make(item.type, {}, ...inline(item.children));
    return link(item);
  });
}

// Shows where a link leads after it, unless the text itself is that address.
function link(item) {
  const a = make("a", { href: item.href, title: item.href, target: "_blank", rel: "noopener noreferrer nofollow" },
    ...inline(item.children));
  const place = placeBeside(a.textContent, item.href);
  return place ? make("span", {}, a, make("span", { className: "host" }, ` (${place})`)) : a;
}

function code(block) {
  const text = make("code", {}, block.text);
  text.raw = block.text;
  const copy = copyButton(() => text.raw, "Copy this code");
  return make("div", { className: "code" },
    make("div", { className: "head" }, make("span", {}, block.language || "text"), copy),
    make("pre", { tabIndex: 0 }, text));
}

// Shows a list without space between items if each has one paragraph.
function itemContent(item) {
  const [first, ...rest] = item.blocks;
  const box = item.done === null ? null
    : make("input", { type: "checkbox", checked: item.done, disabled: true, ariaLabel: item.done ? "done" : "to do" });
  const content = first?.type === "paragraph" ? [...inline(first.inline), ...rest.map(element)]
    : item.blocks.map(element);
  return make("li", { className: box ? "task" : "" }, box, ...content);
}

function table(block) {
  const cell = (tag) => (items, i) => {
    const made = make(tag, {}, ...inline(items));
    made.style.textAlign = block.align[i];
    return made;
  };
  return make("div", { className: "wide", tabIndex: 0 }, make("table", {},
    make("thead", {}, make("tr", {}, ...block.head.map(cell("th")))),
    make("tbody", {}, ...block.rows.map((row) => make("tr", {}, ...row.map(cell("td")))))));
}

function element(block) {
  switch (block.type) {
    case "code": return code(block);
    case "rule": return make("hr");
    case "heading": return make("h" + Math.min(6, block.level + 2), {}, ...inline(block.inline));
    case "quote": return make("blockquote", {}, ...block.blocks.map(element));
    case "table": return table(block);
    case "list": {
      const items = block.items.map(itemContent);
      return block.ordered ? make("ol", { start: block.start }, ...items) : make("ul", {}, ...items);
    }
    default: return make("p", {}, ...inline(block.inline));
  }
}

const kPlain = new WeakMap(); // the text of each block of a place

// Shows a text in `place`. Keeps unchanged blocks, so that a growing text is not drawn again.
export function showMarkdown(place, text) {
  const lines = linesOf(text), blocks = parse(text);
  const sources = blocks.map((b) => lines.slice(b.from, b.to).join("\n"));
  const before = kPlain.get(place) ?? [];
  let same = 0;
  while (same < sources.length && same < before.length && sources[same] === before[same]) ++same;
  const old = place.children[same];
  if (old?.className === "code" && blocks[same]?.type === "code") grow(old, blocks[same++]);
  while (place.childNodes.length > same) place.lastChild.remove();
  place.append(...blocks.slice(same).map(element));
  kPlain.set(place, sources);
}

function grow(shownBlock, block) {
  const fresh = code(block);
  shownBlock.querySelector(".head span").replaceWith(fresh.querySelector(".head span"));
  const text = shownBlock.querySelector("pre code");
  text.replaceChildren(...fresh.querySelector("pre code").childNodes);
  text.raw = block.text;
}
