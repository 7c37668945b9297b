// Measures stet and a peer in turn, on the same weights and threads, and prints medians and ratios: README.md.
import fs from "node:fs";
import path from "node:path";
import {parseArgs} from "node:util";

import {check} from "./check.mjs";
import {ikLlama, llama} from "./sides.mjs";
import {Failure, Tools, formats, median, root, run, say, vocabularyOf} from "./tools.mjs";

const usage = `bench/peers/run [SHAPE] [options]: stet beside llama.cpp, in turn.
  SHAPE             of a checkpoint of random weights (tools/make_checkpoint; default llama3.2-1b)
  -m, --model DIR   a checkpoint that is there, in place of SHAPE; it is only read
  --formats LIST    of f32,bf16,q8,q4 (default: all); those that this build of stet refuses are skipped
  --threads N       of both (default 2)
  --prompt N        tokens of the prefill (default 512)
  --decode N        tokens after it (default 64)
  --context LIST    the same again with prompts of these lengths, such as 8192
  --runs N          processes of each side, in turn; medians are printed (default 5)
  --repeat N        repetitions in a process, whose medians count (default 3; once for --context)
  --batch N         most tokens that the peer processes at once (default 512)
  --kv TYPE         of stet's keys and values: f32 (default), bf16 or f16; the peer's are f16
  --isa NAME        of stet's instruction sets (default: the best that this CPU has)
  --ik FILE         llama-bench of an ik_llama.cpp that is there, in place of llama.cpp: prefill and decode alone
  --json            print JSON, with all runs
  --check           compare logits and greedy tokens of both instead (default: with the pocket checkpoints)
  --build DIR       of stet (default: build/release)`;

const options = {
  model: {type: "string", short: "m"}, formats: {type: "string", default: Object.keys(formats).join()},
  threads: {type: "string", default: "2"}, prompt: {type: "string", default: "512"}, decode: {type: "string", default: "64"},
  context: {type: "string", default: ""}, runs: {type: "string", default: "5"}, repeat: {type: "string", default: "3"},
  batch: {type: "string", default: "512"}, kv: {type: "string", default: "f32"}, isa: {type: "string"}, ik: {type: "string"},
  json: {type: "boolean", default: false},
  check: {type: "boolean", default: false}, build: {type: "string", default: path.join(root, "build/release")},
  help: {type: "boolean", short: "h", default: false},
};

class WrongUsage extends Error {}

function number(name, text) {
  if (!/^[1-9][0-9]{0,6}$/.test(text)) throw new WrongUsage(`--${name}: expected a number, found ${text}`);
  return Number(text);
}

function parse() {
  let parsed;
  try {
    parsed = parseArgs({options, allowPositionals: true});
  } catch (e) {
    throw new WrongUsage(e.message);
  }
  const {values, positionals} = parsed;
  const o = {...values, shape: positionals[0] ?? "llama3.2-1b", named: positionals.length > 0};
  if (positionals.length > 1 || (o.named && o.model)) throw new WrongUsage("one SHAPE, or --model DIR");
  for (const name of ["threads", "prompt", "decode", "runs", "repeat", "batch"]) o[name] = number(name, o[name]);
  o.formats = o.formats.split(",");
  for (const name of o.formats) {
    if (!Object.hasOwn(formats, name)) throw new WrongUsage(`--formats: expected some of ${Object.keys(formats)}, found ${name}`);
  }
  o.context = o.context === "" ? [] : o.context.split(",").map((n) => number("context", n));
  return o;
}

// A pair of runs is undisturbed when others take no more of the machine's CPU time than this during either.
const kDisturbance = 0.05;

// What is read from the figures of a process, both sides' alike. `better`: which way. The peer's save is followed by an
// fsync, as stet's is.
const rows = [
  {name: "prefill", unit: "tokens/s", better: "more", of: (f) => f.prefill.tokens_per_s},
  {name: "decode", unit: "tokens/s", better: "more", of: (f) => f.decode.tokens_per_s},
  {name: "load", unit: "s", better: "less", of: (f) => f.load_s},
  {name: "load and first token", unit: "s", better: "less", of: (f) => f.load_s + f.first_token_s},
  {name: "peak memory", unit: "MB", better: "less", of: (f) => f.peak_bytes / 1e6},
  {name: "state: file", unit: "MB", better: "less", of: (f) => f.state.bytes / 1e6},
  {name: "state: save, fsync", unit: "ms", better: "less", of: (f) => 1e3 * (f.state.save_s + (f.state.sync_s ?? 0))},
  {name: "state: save, peer without fsync", unit: "ms", better: "less", of: (f) => 1e3 * f.state.save_s},
  {name: "state: load", unit: "ms", better: "less", of: (f) => 1e3 * f.state.restore_s},
  {name: "state: load and next token", unit: "ms", better: "less", of: (f) => 1e3 * (f.state.restore_s + f.state.restored_token_s)},
];

// Ratios above 1 are in stet's favour: the median of those of the pairs of runs.
function figures(runs, known) {
  return rows.filter((row) => known.has(row.name)).map(({name, unit, better, of}) => {
    const stet = runs.map((r) => of(r.stet)), other = runs.map((r) => of(r.peer));
    const ratios = stet.map((s, i) => (better === "more" ? s / other[i] : other[i] / s));
    return {name, unit, better, stet: median(stet), peer: median(other), ratio: median(ratios),
            range: {stet: span(stet), peer: span(other), ratio: span(ratios)}};
  });
}

const span = (x) => [Math.min(...x), Math.max(...x)];

// CPU time in ticks: of all processors, of that what was used, and by this process and those it has waited for.
function ticks() {
  const all = fs.readFileSync("/proc/stat", "utf8").split("\n", 1)[0].split(/ +/).slice(1, 9).map(Number);
  const own = fs.readFileSync("/proc/self/stat", "utf8").replace(/.*\) /, "").split(" ").slice(11, 15).map(Number);
  const sum = (x) => x.reduce((s, v) => s + v, 0);
  return {all: sum(all), used: sum(all) - all[3] - all[4], own: sum(own)};
}

// The share of the machine's CPU time that others take while f runs is added to what f returns.
function watched(f) {
  const before = ticks(), result = f(), after = ticks();
  const spent = (name) => after[name] - before[name];
  return {...result, others: Math.max(0, (spent("used") - spent("own")) / spent("all"))};
}

function measure(tools, o, directory, name, side) {
  const {compute, type} = formats[name];
  const stet = ({prompt, repeat}) => JSON.parse(run(tools.stet, [
    "bench", "-m", directory, "--compute", compute, "--kv", o.kv, "--threads", o.threads, "-p", prompt, "-n", o.decode,
    "--repeat", repeat, "--no-probes", "--json", ...(o.isa ? ["--isa", o.isa] : [])]));
  try {
    stet({prompt: 1, repeat: 1});
  } catch (e) {
    if (!(e instanceof Failure)) throw e;
    return {skipped: e.message};
  }
  const base = {task: "measure", gguf: tools.gguf(directory, type), threads: o.threads, batch: o.batch, decode: o.decode,
                vocab: vocabularyOf(directory)};
  const lengths = [{prompt: o.prompt, repeat: o.repeat}, ...o.context.map((prompt) => ({prompt, repeat: 1}))];
  return {
    measurements: lengths.map(({prompt, repeat}) => {
      const job = side.prepare({...base, prompt, repeat}), runs = [];
      for (let i = 1; i <= o.runs; ++i) {
        say(`${name}, prompt of ${prompt}: run ${i} of ${o.runs}`);
        runs.push({stet: watched(() => stet({prompt, repeat})), peer: watched(() => side.measure(job))});
      }
      const quiet = runs.filter((r) => Math.max(r.stet.others, r.peer.others) <= kDisturbance);
      const counted = quiet.length > 0 ? quiet : runs;
      const others = {stet: span(counted.map((r) => r.stet.others)), peer: span(counted.map((r) => r.peer.others))};
      return {prompt, decode: o.decode, flash_attention: job.flash, isa: runs[0].stet.isa, undisturbed: quiet.length, others,
              figures: figures(counted, new Set(side.rows ?? rows.map((row) => row.name))), runs};
    }),
  };
}

function show(x) {
  return x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toPrecision(2);
}

function print(result) {
  const {options: o, peer: p} = result;
  console.log(`${result.checkpoint}, ${o.threads} threads; medians (and ranges) of up to ${o.runs} runs in turn`);
  console.log(`peer: ${p}, batch ${o.batch}, keys and values f16; stet: keys and values ${o.kv}`);
  for (const [name, {skipped, measurements}] of Object.entries(result.formats)) {
    if (skipped) console.log(`\n${name}: SKIPPED, stet refuses it: ${skipped}`);
    for (const m of measurements ?? []) {
      console.log(`\n${name}: prompt of ${m.prompt}, then ${m.decode} tokens; stet ${m.isa}, the peer's flash attention ` +
                  `${m.flash_attention ? "on" : "off"}`);
      console.log("".padEnd(41) + "stet".padStart(24) + "peer".padStart(24) + "stet better by".padStart(28));
      for (const f of m.figures) {
        const range = (of) => f.range[of].map(of === "ratio" ? (x) => x.toFixed(2) : show).join("–");
        const cell = (of) => `${show(f[of])} (${range(of)})`.padStart(24);
        console.log(`${f.name}, ${f.unit}`.padEnd(41) + cell("stet") + cell("peer") + `${f.ratio.toFixed(2)} (${range("ratio")})`.padStart(28));
      }
      const share = (side) => `${m.others[side].map((x) => (100 * x).toFixed(0)).join("–")} %`.padStart(24);
      console.log("CPU time taken by other processes".padEnd(41) + share("stet") + share("peer"));
      console.log(m.undisturbed > 0 ? `${m.undisturbed} of ${o.runs} pairs of runs were undisturbed: only they count` :
                  "BUSY: no pair of runs was undisturbed; this compares nothing (the peer's threads spin while one waits for a core)");
    }
  }
  console.log(`
f32: bfloat16 weights that stet widens as it multiplies, against the same values as float32 in the peer's file: decoding reads
half the bytes in stet. Other formats: the same bits per weight on both sides.`);
  if (o.ik) return;
  console.log(`Peak memory: of a process until the last decoded token; the peer's includes node. Load: the file's pages are in memory; the
peer maps it, stet packs its weights.`);
}

function compare(tools, o) {
  const directory = o.model ?? tools.checkpoint(o.shape), side = o.ik ? ikLlama(o.ik) : llama;
  const result = {checkpoint: path.basename(path.resolve(directory)), options: o, peer: side.about(o.threads), formats: {}};
  for (const name of o.formats) result.formats[name] = measure(tools, o, directory, name, side);
  if (o.json) console.log(JSON.stringify(result, null, 2));
  else print(result);
}

function checkAll(tools, o) {
  const pocket = ["pocket-gemma3", "pocket-llama3"].map((name) => path.join(root, "assets", name));
  const directories = o.model ? [o.model] : o.named ? [tools.checkpoint(o.shape)] : pocket;
  const results = directories.map((directory) => check(tools, directory, o.formats, o));
  if (results.includes(false)) process.exitCode = 1;
}

try {
  const o = parse();
  if (o.help) {
    console.log(usage);
  } else {
    const tools = new Tools(o.build);
    o.check ? checkAll(tools, o) : compare(tools, o);
  }
} catch (e) {
  if (!(e instanceof Failure || e instanceof WrongUsage)) throw e;
  say(`bench/peers/run: ${e.message}`);
  process.exitCode = e instanceof WrongUsage ? 2 : 1;
}
