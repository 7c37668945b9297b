// What comparing and checking share: running both sides, and files for the peer.
import {spawnSync} from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import {fileURLToPath} from "node:url";

export const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../..");
export const scratch = process.env.STET_PEERS_DIR;

// What a format is called on each side.
export const formats = {
  f32: {compute: "f32", type: "f32"},
  bf16: {compute: "bf16", type: "bf16"},
  q8: {compute: "q8", type: "q8_0"},
  q4: {compute: "q4", type: "q4_0"},
};

export class Failure extends Error {}

export const say = (line) => process.stderr.write(line + "\n");

// Standard output of a command; a Failure with its last line of complaint unless it succeeds.
export function run(command, args) {
  const r = spawnSync(command, args, {encoding: "utf8", maxBuffer: 1 << 28, env: {...process.env, TMPDIR: scratch}});
  if (r.error) throw new Failure(`${command}: ${r.error.message}`);
  if (r.status !== 0) throw new Failure(r.stderr.trim().split("\n").at(-1) || `${command}: ended by ${r.signal ?? r.status}`);
  return r.stdout;
}

export const median = (x) => {
  const s = x.toSorted((a, b) => a - b);
  return (s[s.length >> 1] + s[(s.length - 1) >> 1]) / 2;
};

export class Tools {
  constructor(build) {
    const at = (name) => {
      const file = path.join(build, name);
      if (!fs.existsSync(file)) {
        throw new Failure(`${file}: not there; cmake --preset release -DSTET_BENCH=ON && cmake --build --preset release ` +
                          "--target stet_command make_checkpoint write_gguf");
      }
      return file;
    };
    this.stet = at("tools/stet");
    this.makeCheckpoint = at("tools/make_checkpoint");
    this.writeGguf = at("bench/write_gguf");
  }

  // The directory of a checkpoint of random weights.
  checkpoint(shape) {
    const directory = path.join(scratch, "checkpoint-" + path.basename(shape, ".json"));
    if (!fs.existsSync(path.join(directory, "config.json"))) {
      say(`writing ${directory}`);
      run(this.makeCheckpoint, [shape, "-o", directory]);
    }
    return directory;
  }

  // The weights of a checkpoint for the peer; written anew when the checkpoint or the writer is younger.
  gguf(directory, type) {
    const file = path.join(scratch, `${path.basename(path.resolve(directory))}-${type}.gguf`);
    const age = (f) => fs.statSync(f).mtimeMs;
    const sources = fs.readdirSync(directory).map((name) => path.join(directory, name));
    if (!fs.existsSync(file) || age(file) < Math.max(age(this.writeGguf), ...sources.map(age))) {
      say(`writing ${file}`);
      run(this.writeGguf, [directory, "-o", file, "--type", type]);
    }
    return file;
  }
}

export function peer(job) {
  return JSON.parse(run(process.execPath, [path.join(root, "bench/peers/peer.mjs"), JSON.stringify(job)]));
}

export function configOf(directory) {
  return JSON.parse(fs.readFileSync(path.join(directory, "config.json"), "utf8"));
}

export function vocabularyOf(directory) {
  const config = configOf(directory);
  return config.vocab_size ?? config.text_config.vocab_size;
}
