// Measures stet and a peer alternately, with the same weights and threads, and prints medians and ratios. See
// README.md.
import path from "node:path";
import {parseArgs} from "node:util";

import {check} from "./check.mjs";
import {ikLlama} from "./ik.mjs";
import {llama} from "./llama.mjs";
import {Failure, Talker, say} from "./processes.mjs";
import {figuresOf, printHeader, printNotes, printTable} from "./report.mjs";
import {Tools, fileTypes, formats, root, vocabularyOf} from "./tools.mjs";
import {inTurn} from "./turns.mjs";

const usage = `bench/peers/run [SHAPE] [options]: stet beside llama.cpp, in turn.
  SHAPE             of a checkpoint of random weights (tools/make_checkpoint; default llama3.2-1b)
  -m, --model DIR   a checkpoint that is there, in place of SHAPE; it is only read
  --formats LIST    of f32,bf16,q8,q4 (default: all); those that this build of stet refuses are skipped; with --ik, of
                    ${fileTypes}, too: one GGUF file for both
  --threads N       of both (default 2)
  --prompt N        tokens of the prefill (default 512)
  --decode N        tokens after it (default 64)
  --slice N         of them that one side decodes before it is the other's turn (default 8)
  --runs N          rounds of a prefill and the decoding after it (default 5)
  --repeat N        times that each side's state is saved and loaded, whose medians count (default 3)
  --batch N         most tokens that the peer processes at once (default 512)
  --kv TYPE         of stet's keys and values: f32 (default), bf16 or f16; the peer's are f16
  --isa NAME        of stet's instruction sets (default: the best that this CPU has)
  --ik BUILD        beside the ik_llama.cpp that was built in this directory, in place of llama.cpp: ` +
  `prefill and decode alone
  --gguf FILE       both read this file, made of the checkpoint -m; in place of --formats
  --json            print JSON, with all turns, once all is measured
  --check           compare logits and greedy tokens of stet and llama.cpp instead ` +
  `(default: with the pocket checkpoints)
  --build DIR       of stet (default: build/release)`;

const options = {
  model: {type: "string", short: "m"}, formats: {type: "string", default: Object.keys(formats).join()},
  threads: {type: "string", default: "2"}, prompt: {type: "string", default: "512"},
  decode: {type: "string", default: "64"},
  slice: {type: "string", default: "8"}, runs: {type: "string", default: "5"}, repeat: {type: "string", default: "3"},
  batch: {type: "string", default: "512"}, kv: {type: "string", default: "f32"}, isa: {type: "string"},
  ik: {type: "string"}, gguf: {type: "string"},
  json: {type: "boolean", default: false}, check: {type: "boolean", default: false},
  build: {type: "string", default: path.join(root, "build/release")},
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
    throw new WrongUsage(e.message.split("\n")[0]);
  }
  const {values, positionals} = parsed;
  const o = {...values, shape: positionals[0] ?? "llama3.2-1b", named: positionals.length > 0};
  if (positionals.length > 1 || (o.named && o.model)) throw new WrongUsage("one SHAPE, or --model DIR");
  if (o.check && o.ik !== undefined) throw new WrongUsage("--check compares with llama.cpp, not with --ik");
  for (const name of ["threads", "prompt", "decode", "slice", "runs", "repeat", "batch"])
    o[name] = number(name, o[name]);
  if (o.gguf !== undefined && o.model === undefined) throw new WrongUsage("--gguf: -m DIR says what it was made of");
  if (o.gguf !== undefined) return {...o, formats: [path.basename(o.gguf)]};
  o.formats = o.formats.split(",");
  for (const name of o.formats) {
    if (Object.hasOwn(formats, name)) continue;
    if (!fileTypes.includes(name))
      throw new WrongUsage(`--formats: expected some of ${Object.keys(formats)} or ${fileTypes}, found ${name}`);
    if (o.ik === undefined) throw new WrongUsage(`--formats ${name}: expected --ik, found none`);
  }
  return o;
}

async function measure(tools, o, directory, name, side) {
  const vocab = vocabularyOf(directory), own = o.gguf === undefined ? formats[name] : undefined;
  const gguf = o.gguf !== undefined ? path.resolve(o.gguf)
    : own ? await tools.gguf(directory, own.type)
    : await tools.quantized(directory, name, side.quantize);
  const stet = () => Talker.start(tools.stet, [
    "bench", "--turns", "-m", own ? directory : gguf, ...(own ? ["--compute", own.compute] : []),
    "--kv", o.kv, "--threads", o.threads, "-p", o.prompt,
    "--repeat", o.repeat, ...(o.isa ? ["--isa", o.isa] : [])]);
  try {
    await (await stet()).end();  // also loads its file into memory
  } catch (e) {
    if (!(e instanceof Failure)) throw e;
    return {skipped: e.message};
  }
  const {threads, prompt, decode, slice, repeat, batch} = o;
  const job = await side.prepare({gguf, vocab, threads, prompt, decode, slice, repeat, batch});
  const talkers = {stet: await stet(), peer: await side.start(job)}, processes = {};
  const rounds = await inTurn(talkers, o, name);
  for (const [who, talker] of Object.entries(talkers)) {
    processes[who] = {...talker.about, ...(side.hasState ? await talker.ask("state") : {})};
    await talker.end();
  }
  if (processes.stet.positions !== processes.peer.positions) {
    throw new Failure(
      `${name}: expected ${processes.stet.positions} positions, found ${processes.peer.positions} in the peer`);
  }
  return {isa: talkers.stet.about.isa, flash_attention: job.flash, ...figuresOf(rounds, processes), rounds, processes};
}

async function compare(tools, o) {
  const side = o.ik === undefined ? llama : await ikLlama(o.ik), directory = o.model ?? await tools.checkpoint(o.shape);
  const result = {checkpoint: path.basename(path.resolve(directory)), options: o,
    peer: await side.about(o), formats: {}};
  if (!o.json) printHeader(result.checkpoint, result.peer, o);
  for (const name of o.formats) {
    result.formats[name] = await measure(tools, o, directory, name, side);
    if (!o.json) printTable(name, result.formats[name], o);
  }
  if (o.json) console.log(JSON.stringify(result, null, 2));
  else printNotes(side);
  if (Object.values(result.formats).every((m) => m.skipped))
    throw new Failure(`nothing was compared: ${result.formats[o.formats[0]].skipped}`);
}

async function checkAll(tools, o) {
  const pocket = ["pocket-gemma3", "pocket-llama3"].map((name) => path.join(root, "assets", name));
  const directories = o.model ? [o.model] : o.named ? [await tools.checkpoint(o.shape)] : pocket;
  for (const directory of directories) {
    if (!await check(tools, directory, o.formats, o)) process.exitCode = 1;
  }
}

try {
  const o = parse();
  if (o.help) {
    console.log(usage);
  } else {
    const tools = new Tools(o.build);
    await (o.check ? checkAll(tools, o) : compare(tools, o));
  }
} catch (e) {
  if (!(e instanceof Failure || e instanceof WrongUsage)) throw e;
  say(`bench/peers/run: ${e.message}`);
  process.exit(e instanceof WrongUsage ? 2 : 1);  // ends programs that are still running
}
