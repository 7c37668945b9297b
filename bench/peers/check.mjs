// Are the weights that the peer gets the ones that stet has? Greedy tokens and logits of both, for the same ids.
import fs from "node:fs";
import path from "node:path";

import {peer} from "./llama.mjs";
import {run, scratch} from "./processes.mjs";
import {configOf, formats, vocabularyOf} from "./tools.mjs";

const kPrompt = 200, kTokens = 16; // beyond the window of sliding layers and the positions that scaled RoPE starts from

// Most that the peer's logits may differ from stet's under f32: root mean square, relative to the logits' deviation.
// float32 differs by the order of sums, by the peer's angles of RoPE, each of which it makes of the one before (LongRoPE
// 2.1e-5, others less), and by its GELU, which is a table of float16 (hence 1e-3 for Gemma, GPT-2, GPT-NeoX); the others
// by their rounding of weights and activations, for which a wrong scale, order or permutation cannot be mistaken: it gives
// logits that have nothing to do with each other.
const limitOf = (name, gelu) => (name === "f32" ? (gelu ? 1e-3 : 1e-4) : {bf16: 0.02, q8: 0.05, q4: 0.4}[name]);

// Rows of the logits that `stet logits` wrote: the last `rows`.
function readLogits(file, rows, vocab) {
  const bytes = fs.readFileSync(file);
  const length = Number(bytes.readBigUInt64LE(0));
  const {data_offsets} = JSON.parse(bytes.subarray(8, 8 + length).toString())["logits"];
  const end = 8 + length + data_offsets[1], begin = end - rows * vocab * 4;
  return new Float32Array(Uint8Array.from(bytes.subarray(begin, end)).buffer);
}

function deviation(x) {
  const mean = x.reduce((s, v) => s + v, 0) / x.length;
  return Math.sqrt(x.reduce((s, v) => s + (v - mean) ** 2, 0) / x.length);
}

function difference(a, b) {
  return Math.sqrt(a.reduce((s, v, i) => s + (v - b[i]) ** 2, 0) / a.length) / deviation(a);
}

// One line for each format; returns whether all agree.
export async function check(tools, directory, names, {threads, isa}) {
  const vocab = vocabularyOf(directory), gelu = /^(gemma|gpt)/.test(configOf(directory).model_type);
  const prompt = Array.from({length: kPrompt}, (_, i) => (i * 7919 + 13) % vocab);
  const file = (name) => path.join(scratch, `check-${process.pid}-${name}`);
  const files = {ids: file("ids.json"), stet: file("stet.safetensors"), peer: file("peer.f32")};
  const stet = (command, ids, ...args) => {
    fs.writeFileSync(files.ids, JSON.stringify(ids));
    return run(tools.stet, [command, "-m", directory, "--threads", threads, ...(isa ? ["--isa", isa] : []),
                            "--ids-file", files.ids, ...args]);
  };
  try {
    const reply = JSON.parse(await stet("generate", prompt, "-n", kTokens, "--greedy", "--ignore-eos", "--json")).ids;
    await stet("logits", [...prompt, ...reply], "-o", files.stet);
    const expected = readLogits(files.stet, kTokens, vocab);
    let passed = true;
    for (const name of names) {
      const gguf = await tools.gguf(directory, formats[name].type);
      const {ids} = await peer({task: "compute", gguf, threads, batch: 512, vocab, ids: prompt, tokens: kTokens, then: reply,
                                rows: kTokens, logits: files.peer});
      const logits = new Float32Array(Uint8Array.from(fs.readFileSync(files.peer)).buffer);
      const off = difference(expected, logits), same = reply.findIndex((id, i) => id !== ids[i]);
      const limit = limitOf(name, gelu), good = off <= limit && (name !== "f32" || same < 0);
      passed &&= good;
      console.log(`${path.basename(directory)} ${name}: ${good ? "agrees" : "DIFFERS"}: greedy tokens ` +
                  `${same < 0 ? `all ${kTokens}` : `the first ${same} of ${kTokens}`} the same, logits off by ` +
                  `${off.toExponential(1)} of their deviation (at most ${limit})`);
    }
    return passed;
  } finally {
    for (const f of Object.values(files)) fs.rmSync(f, {force: true});
  }
}
