// Views of a state: next token, tokens, elements, keys and values, the inside of the model, and the comparison with
// another state.
import { get } from "./api.js";
import { $, largest, make, percent, redrawing, visible } from "./dom.js";
import { inside, patching } from "./inside.js";

async function next(state, signal, handlers) {
  const { data } = await get(`/v1/states/${state.id}/top?n=25`, signal);
  const best = Math.max(...data.map((c) => Math.exp(c.logprob)));
  return [make("p", {}, "The likeliest next tokens. Choose one to continue with it."), ...data.map((c) => {
    const p = Math.exp(c.logprob), part = make("span", { className: "part" });
    part.style.width = Math.max(1, 100 * p / best) + "%";
    const row = make("button", { className: "candidate", title: `token ${c.id}; drawn with ${percent(c.probability)}` },
      make("code", {}, visible(c.text)), part, make("span", { className: "number" }, percent(p)));
    row.dataset.id = c.id;
    row.addEventListener("click", () => handlers.choose(c.id, state.id));
    return row;
  })];
}

async function tokens(state, signal, handlers) {
  const { data } = await get(`/v1/states/${state.id}/tokens?logprobs=true`, signal);
  const place = make("div", { className: "tokens" });
  for (const t of data) {
    const p = t.logprob === null ? null : Math.exp(t.logprob);
    const span = make("span", { className: t.visible ? "" : "gone",
      title: `position ${t.position}, token ${t.id}` + (p === null ? "" : `, ${percent(p)}`) }, t.text || "∅");
    if (p !== null) span.style.backgroundColor = `hsl(${Math.round(120 * p)} 70% 50% / 0.28)`;
    span.addEventListener("click", () => handlers.rewindTo(t.position, state.id));
    place.append(span);
  }
  return [make("p", {}, "Green was likely, red was not. A click rewinds to before that token."), place];
}

async function elements(state, signal) {
  const whole = await get("/v1/states/" + state.id, signal);
  const rows = [["digest", whole.digest], ["id", whole.id], ...whole.elements.map((e) => [e.name, e.value])];
  return [make("table", {}, make("tbody", {}, ...rows.map(([name, value]) =>
    make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, value)))))];
}

const heat = { layer: -1, head: 0, what: "k" };  // layer -1: the first with attention

function paint(canvas, values, width) {
  const height = values.length, most = largest(values);
  canvas.width = width;
  canvas.height = Math.max(1, height);
  const context = canvas.getContext("2d"), image = context.createImageData(width, Math.max(1, height));
  values.forEach((row, y) => row.forEach((v, x) => {
    const at = 4 * (y * width + x), strength = Math.sqrt(Math.abs(v) / most);
    image.data.set(v < 0 ? [40, 90, 220, 255 * strength] : [220, 80, 40, 255 * strength], at);
  }));
  context.putImageData(image, 0, 0);
}

async function keysAndValues(state, signal) {
  const place = make("div");
  const failed = (error) => [...place.querySelectorAll(".bar"), make("p", {}, error.message)];
  const draw = redrawing(place, async () => {
    const layer = heat.layer < 0 ? "" : `layer=${heat.layer}&`;
    const kv = await get(`/v1/states/${state.id}/kv?${layer}head=${heat.head}&what=${heat.what}`, signal);
    if (heat.layer < 0) heat.layer = kv.layer;
    const choice = (name, numbers) => {
      const select = make("select", { ariaLabel: name }, ...numbers.map((i) =>
        make("option", { value: i, selected: i === heat[name] }, `${name} ${i}`)));
      select.addEventListener("change", () => { heat[name] = Number(select.value); draw(); });
      return select;
    };
    const what = make("select", { ariaLabel: "what" },
      make("option", { value: "k", selected: heat.what === "k" }, "keys"),
      make("option", { value: "v", selected: heat.what === "v" }, "values"));
    what.addEventListener("change", () => { heat.what = what.value; draw(); });
    const canvas = make("canvas", { role: "img",
      ariaLabel: `${heat.what === "k" ? "Keys" : "Values"} of layer ${heat.layer}, ` +
        `head ${heat.head}: ${kv.positions} positions by ${kv.head_dim}` });
    paint(canvas, kv.values, kv.head_dim);
    const shared = make("div", { className: "shared", title: "blocks of 64 positions" },
      ...kv.shared.map((yes) => make("i", { className: yes ? "yes" : "" })));
    const count = kv.shared.filter(Boolean).length;
    return [make("div", { className: "bar" }, choice("layer", kv.own_layers),
        choice("head", [...Array(kv.heads).keys()]), what),
      canvas,
      make("p", {}, `Down: positions; across: ${kv.head_dim} dimensions. ` +
        `${count} of ${kv.shared.length} blocks are shared with the parent:`), shared];
  }, failed);
  await draw();
  return [place];
}

function compared(result) {
  if (!result) return [make("p", {}, "Drag a state onto another, or choose Compare, to see where they differ.")];
  const { diff, a, b } = result;
  const text = (s) => {
    let n = 0;
    while (n < diff.text_a.length && diff.text_a[n] === diff.text_b[n]) ++n;
    return make("div", {}, s.slice(0, n), make("mark", {}, s.slice(n)));
  };
  const head = diff.equal ? make("p", { className: "same" }, "✓ equal, every bit")
    : make("p", {}, "First difference: ", make("b", {}, diff.first_difference));
  const layers = make("table", {},
    make("thead", {}, make("tr", {},
      ...["layer", "keys and values", "largest difference"].map((t) => make("th", {}, t)))),
    make("tbody", {}, ...diff.layers.map((l) =>
      make("tr", {}, make("td", {}, String(l.layer)),
        make("td", {}, l.equal ? "equal" : "different"),
        make("td", { className: "number" }, l.max_abs.toPrecision(3))))));
  return [head, make("p", {}, `${diff.tokens.common} common tokens, of ${diff.tokens.a} and ${diff.tokens.b}.`), layers,
    make("div", { className: "sides" }, make("b", {}, a), make("b", {}, b), text(diff.text_a), text(diff.text_b))];
}

// Adds patching to a comparison of states with equal numbers of tokens, which it needs.
function withPatching(result, shown, signal) {
  if (!result || result.diff.equal || result.diff.tokens.a !== result.diff.tokens.b) return shown;
  const place = make("div"), button = make("button", {}, "Where is the difference kept?");
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      place.replaceChildren(...await patching(result.ids[0], result.ids[1], signal));
    } catch (error) {
      if (error.name !== "AbortError") place.replaceChildren(make("p", {}, error.message));
    }
  });
  place.append(button);
  return [...shown, place];
}

let latest = 0, running = null;

// Shows a view. If answers arrive out of order, only that of the last request is shown.
export async function look(kind, state, handlers, comparison) {
  const turn = ++latest;
  running?.abort(); // its answer is not needed any more
  running = new AbortController();
  const { signal } = running;
  for (const tab of document.querySelectorAll("[data-look]"))
    tab.setAttribute("aria-selected", tab.dataset.look === kind);
  if (!state && kind !== "diff") return $("panel").replaceChildren(make("p", {}, "No state yet."));
  const ways = { next, tokens, elements, heat: keysAndValues, inside };
  try {
    const shown = kind === "diff" ? withPatching(comparison, compared(comparison), signal)
      : await ways[kind](state, signal, handlers);
    if (turn === latest) $("panel").replaceChildren(...shown);
  } catch (error) {
    if (turn === latest) $("panel").replaceChildren(make("p", {}, error.message));
  }
}
