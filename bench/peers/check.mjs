// Checks that the peer and stet have the same weights: compares greedy tokens and logits of both
// for the same ids.
import fs from "node:fs";
import path from "node:path";

import {peer} from "./llama.mjs";
import {run, scratch} from "./processes.mjs";
import {configOf, formats, vocabularyOf} from "./tools.mjs";

const kPrompt = 200, kTokens = 16; // exceeds the window of sliding layers, and the positions where scaled RoPE starts

// Returns the largest allowed difference of the peer's logits from stet's f32 logits: root mean
// square, relative to the logits' deviation. For float32 it comes from the order of sums and from
// the peer's RoPE angles. Each angle is computed from the one before (LongRoPE 2.1e-5, others
// less). The peer's GELU is a table of float16, which explains 1e-3 for Gemma, GPT-2 and GPT-NeoX.
// The other formats round weights and activations. A wrong scale, order or permutation cannot hide
// in these limits: the logits would be unrelated.
const limitOf = (name, gelu) => (name === "f32" ? (gelu ? 1e-3 : 1e-4) : {bf16: 0.02, q8: 0.05, q4: 0.4}[name]);

// Returns the last `rows` rows of the logits that `stet logits` wrote.
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

// Prints one line for each format. Returns true if all agree.
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
      const {ids} = await peer({task: "compute", gguf, threads, batch: 512, vocab, ids: prompt, tokens: kTokens,
                                 then: reply,
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
