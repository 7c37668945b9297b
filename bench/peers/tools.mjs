// Shared by compare.mjs and check.mjs: the programs of this build, checkpoints, and their weights
// for the peer.
import fs from "node:fs";
import path from "node:path";
import {fileURLToPath} from "node:url";

import {Failure, run, say, scratch} from "./processes.mjs";

export const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../..");

// The names of each format on both sides.
export const formats = {
  f32: {compute: "f32", type: "f32"},
  bf16: {compute: "bf16", type: "bf16"},
  q8: {compute: "q8", type: "q8_0"},
  q4: {compute: "q4", type: "q4_0"},
};
// GGUF file types that both sides read directly, made by the peer's llama-quantize.
export const fileTypes = ["Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_K_S", "Q4_0"];

// Returns true if a file is missing, or older than its sources.
export function outdated(file, sources) {
  const age = (f) => fs.statSync(f).mtimeMs;
  return !fs.existsSync(file) || age(file) < Math.max(...sources.map(age));
}

export class Tools {
  constructor(build) {
    const at = (name) => {
      const file = path.join(build, name);
      if (!fs.existsSync(file)) {
        throw new Failure(`${file}: not there; cmake --preset release && cmake --build --preset release ` +
                          "--target stet_command make_checkpoint");
      }
      return file;
    };
    this.stet = at("tools/stet");
    this.makeCheckpoint = at("tools/make_checkpoint");
  }

  // Returns the directory of a checkpoint of random weights.
  async checkpoint(shape) {
    const directory = path.join(scratch, "checkpoint-" + path.basename(shape, ".json"));
    if (!fs.existsSync(path.join(directory, "config.json"))) {
      say(`writing ${directory}`);
      await run(this.makeCheckpoint, [shape, "-o", directory]);
    }
    return directory;
  }

  // Returns a checkpoint's weights as a file for the peer.
  async gguf(directory, type) {
    const file = path.join(scratch, `${path.basename(path.resolve(directory))}-${type}.gguf`);
    if (outdated(file, [this.stet, ...fs.readdirSync(directory).map((name) => path.join(directory, name))])) {
      say(`writing ${file}`);
      await run(this.stet, ["convert-model", directory, "-o", file, "--type", type, "--tokenizer", "made-up"]);
    }
    return file;
  }

  // Returns the weights rounded by a program of the peer.
  async quantized(directory, type, quantize) {
    const whole = await this.gguf(directory, "bf16"), file = whole.replace(/-bf16\.gguf$/, `-${type}.gguf`);
    if (outdated(file, [whole])) {
      say(`writing ${file}`);
      await run(quantize, [...ownFallbacks(directory, type), whole, file, type]);
    }
    return file;
  }
}

// Rows whose length is not a multiple of 256 cannot have a K type. llama.cpp writes Q5_0 and Q8_0
// instead, as in published files. ik_llama.cpp writes types of its own unless an option forbids it.
function ownFallbacks(directory, type) {
  const {hidden_size} = configOf(directory);
  if (type !== "Q4_K_M" || hidden_size % 256 === 0) return [];
  return ["--custom-q", "token_embd=q8_0,attn_q=q5_0,attn_k=q5_0,attn_v=q8_0,ffn_gate=q5_0,ffn_up=q5_0"];
}

export function configOf(directory) {
  const file = path.join(directory, "config.json");
  try {
    return JSON.parse(fs.readFileSync(file, "utf8"));
  } catch (e) {
    throw new Failure(`${file}: ${e.code ?? e.message}`);
  }
}

export function vocabularyOf(directory) {
  const config = configOf(directory);
  return config.vocab_size ?? config.text_config.vocab_size;
}
