// Views of the inside of the model at a state's tokens: attention, logit lens, norms of keys and values, and patching.
import { get } from "./api.js";
import { largest, make, percent, put, redrawing, visible } from "./dom.js";

const chosen = { picture: "attention", layer: -1, head: 0, last: 48 };  // layer -1: the first with attention

function choice(name, options, changed) {
  const select = make("select", { ariaLabel: name }, ...options.map(([value, text]) =>
    make("option", { value, selected: String(chosen[name]) === String(value) }, text)));
  select.addEventListener("change", () => {
    chosen[name] = typeof chosen[name] === "number" ? Number(select.value) : select.value;
    changed();
  });
  return select;
}

const numbers = (name, count) => Array.from({ length: count }, (_, i) => [i, `${name} ${i}`]);

// Draws a map of values in 0 .. 1 (negative ones blue), with a row of cells for each of `values`. A line below
// describes the cell under the pointer, or the one chosen by arrow keys. A click or Enter passes its row to `pick`.
export function map(values, columns, label, tell, pick) {
  const canvas = make("canvas", { role: "img", ariaLabel: label, tabIndex: 0,
    className: "map", width: columns, height: values.length });
  const line = make("p", { className: "told", role: "status" }, tell(values.length - 1, values.at(-1).length - 1));
  const context = canvas.getContext("2d"), image = context.createImageData(columns, values.length);
  values.forEach((row, y) => row.forEach((v, x) => {
    image.data.set([...(v < 0 ? [40, 90, 220] : [220, 80, 40]), 255 * Math.sqrt(Math.min(1, Math.abs(v)))],
      4 * (y * columns + x));
  }));
  context.putImageData(image, 0, 0);
  canvas.style.minHeight = Math.min(40 * values.length, 160) + "px";
  const at = { x: columns - 1, y: values.length - 1 };
  const show = () => { if (at.x < values[at.y].length) put(line, tell(at.y, at.x)); };
  const clamp = (v, count) => Math.max(0, Math.min(count - 1, v));
  canvas.addEventListener("pointermove", (e) => {
    const box = canvas.getBoundingClientRect();
    at.x = clamp(Math.floor((e.clientX - box.left) / box.width * columns), columns);
    at.y = clamp(Math.floor((e.clientY - box.top) / box.height * values.length), values.length);
    show();
  });
  canvas.addEventListener("keydown", (e) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[e.key];
    if (e.key === "Enter") pick?.(at.y);
    if (!step) return;
    e.preventDefault();
    at.x = clamp(at.x + step[0], columns);
    at.y = clamp(at.y + step[1], values.length);
    show();
  });
  canvas.addEventListener("click", () => pick?.(at.y));
  return [canvas, line];
}

async function attention(state, signal, redraw) {
  const last = Math.min(chosen.last, state.positions, Math.floor(2 ** 20 / state.positions));
  const layer = chosen.layer < 0 ? "" : `layer=${chosen.layer}&`;
  const a = await get(`/v1/states/${state.id}/attention?${layer}head=${chosen.head}&last=${last}`, signal);
  if (chosen.layer < 0) chosen.layer = a.layer;
  const text = make("div", { className: "tokens" });
  const name = (p) => `“${visible(a.tokens[p])}” (${p})`;
  const pick = (row) => {
    const spans = a.values[row].map((v, p) => {
      const span = make("span", { title: `${name(p)}: ${percent(v)}` }, a.tokens[p] || "∅");
      span.style.backgroundColor = `rgb(220 80 40 / ${Math.sqrt(v) * 0.85})`;
      return span;
    });
    const head = make("b", {}, `${name(a.first + row)} attends to:`);
    put(text, head, "\n", ...spans);
  };
  pick(a.values.length - 1);
  const rows = map(a.values, a.tokens.length,
    `Attention of layer ${chosen.layer}, head ${chosen.head}: ${a.values.length} positions look at ${a.tokens.length}`,
    (y, x) => `${name(a.first + y)} looks at ${name(x)}: ${percent(a.values[y][x])}`, pick);
  const layers = a.attention_layers.map((i) => [i, `layer ${i}`]);
  return [choice("layer", layers, redraw), choice("head", numbers("head", a.heads), redraw),
    make("p", {}, `Down: the last ${a.values.length} positions; across: the positions that each attends to. ` +
      "Click one to show its tokens below."), ...rows, text];
}

async function lens(state, signal) {
  const l = await get(`/v1/states/${state.id}/lens?last=${Math.min(12, state.positions)}`, signal);
  const cell = (c) => {
    const p = Math.exp(c.logprob);
    const td = make("td", {
      title: percent(p) + (c.next_logprob === null ? ""
        : `; the token that followed: ${percent(Math.exp(c.next_logprob))}`)
    }, make("code", {}, visible(c.text)));
    td.style.backgroundColor = `rgb(220 80 40 / ${Math.sqrt(p) * 0.6})`;
    return td;
  };
  const head = make("tr", {}, make("th", {}, "layer"),
    ...l.tokens.map((t) => make("th", { scope: "col" }, make("code", {}, visible(t)))));
  const rows = l.values.map((row, i) =>
    make("tr", {}, make("th", { scope: "row" }, String(i)), ...row.map(cell))).reverse();
  return [make("p", {}, "The likeliest next token if the model ended after that layer. " +
    "The stronger the colour, the more likely it is. Above: the tokens of the text."),
    make("div", { className: "wide" }, make("table", { className: "lens" },
      make("thead", {}, head), make("tbody", {}, ...rows)))];
}

async function norms(state, signal) {
  const n = await get(`/v1/states/${state.id}/norms`, signal);
  const drawn = [["Keys", n.keys], ["Values", n.values]].flatMap(([name, layers]) => {
    const rows = layers.map((row) => row ?? n.tokens.map(() => 0));  // null: a layer without attention
    const most = largest(rows);
    return [make("h3", {}, name), ...map(rows.map((r) => r.map((v) => (v / most) ** 2)), n.tokens.length,
      `Norms of ${name.toLowerCase()}: ${n.layers} layers by ${n.positions} positions`,
      (y, x) => `layer ${y}, “${visible(n.tokens[x])}” (${x * n.step}): ${rows[y][x].toPrecision(4)}`)];
  });
  return [make("p", {},
    "Down: layers; across: positions. The norm of the keys or values of all heads; the largest are the darkest."),
    ...drawn];
}

// Patches the first state's activations into the second one's tokens, to show where their difference is kept.
export async function patching(a, b, signal) {
  const p = await get(`/v1/states/${a}/patch/${b}?last=32`, signal);
  const [say, other] = [visible(p.answer.text), visible(p.wrong.text)];
  return [make("p", {}, `How much of “${say}” (in place of “${other}”) ` +
    "comes back when one layer at one position is taken from the first state. " +
    `Down: layers; across: the last ${p.tokens.length} tokens.`),
    ...map(p.values, p.tokens.length, `Patching: ${p.layers} layers by ${p.tokens.length} positions`,
      (y, x) =>
        `layer ${y}, “${visible(p.tokens[x])}” (${p.first + x}): ${Math.round(100 * p.values[y][x])} % comes back`)];
}

export async function inside(state, signal) {
  const place = make("div");
  const ways = { attention, lens, norms };
  const bar = (...choices) => make("div", { className: "bar" }, choice("picture", [["attention", "attention"],
    ["lens", "logit lens"], ["norms", "norms of keys and values"]], redraw), ...choices);
  const draw = redrawing(place, async () => {
    const shown = await ways[chosen.picture](state, signal, redraw);
    const choices = shown.filter((part) => part.tagName === "SELECT");
    return [bar(...choices), ...shown.filter((part) => !choices.includes(part))];
  }, (error) => [bar(), make("p", {}, error.message)]);
  const redraw = async () => {
    await draw();
    for (const part of place.querySelectorAll(".wide")) part.scrollLeft = part.scrollWidth;
  };
  await draw();
  return [place];
}
