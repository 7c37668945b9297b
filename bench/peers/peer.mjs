// One process of the peer, llama.cpp through node-llama-cpp. `node peer.mjs '{"task": ..., ...}'`
// prints lines of JSON.
import fs from "node:fs";
import path from "node:path";
import readline from "node:readline";
import {pathToFileURL} from "node:url";

const job = JSON.parse(process.argv[2]);
const package_ = path.join(process.env.STET_PEERS_DIR, "node_modules/node-llama-cpp");
const {getLlama, LlamaLogLevel} = await import(pathToFileURL(path.join(package_, "dist/index.js")));

const greedy = {temperature: 0, yieldEogToken: true};
const seconds = () => performance.now() / 1e3;
const print = (answer) => console.log(JSON.stringify(answer));
const median = (x) => x.toSorted((a, b) => a - b)[x.length >> 1];
async function time(f) {
  const start = seconds();
  await f();
  return seconds() - start;
}

const log = [];
const llama = await getLlama({
  gpu: false, build: "never", skipDownload: true, maxThreads: job.threads,
  logLevel: LlamaLogLevel.info, logger: (level, line) => log.push({level, line}),
});

async function open({contextSize, flashAttention, kv = "F16"}) {
  const model = await llama.loadModel({
    modelPath: job.gguf, gpuLayers: 0, useMmap: true, ignoreMemorySafetyChecks: true
  });
  const context = await model.createContext({
    contextSize, batchSize: job.batch, threads: {ideal: job.threads, min: job.threads},
    flashAttention, ignoreMemorySafetyChecks: true, performanceTracking: true,
    experimentalKvCacheKeyType: kv, experimentalKvCacheValueType: kv,
  });
  return {model, context, sequence: context.getSequence({checkpoints: {interval: false}})};
}

// Returns the seconds, by llama.cpp's clock, of processing single tokens since the last call, and
// their number.
async function decoded(context) {
  log.length = 0;
  await context.printTimings();
  const found = log.map(({line}) => /perf_context_print: +eval time = +([\d.]+) ms \/ +(\d+) runs/.exec(line))
    .find((m) => m);
  if (!found) throw new Error("llama.cpp did not say how long it took");
  return {s: Number(found[1]) / 1e3, tokens: Number(found[2])};
}

function peakBytes() {
  const line = /VmHWM:\s+(\d+) kB/.exec(fs.readFileSync("/proc/self/status", "utf8"));
  return Number(line[1]) * 1024;
}

function sync(file) {
  const fd = fs.openSync(file, "r+");
  fs.fsyncSync(fd);
  fs.closeSync(fd);
}

// Measures saving with an fsync, and loading over the present state, followed by a token.
async function state(sequence, append) {
  const peak_bytes = peakBytes(), positions = sequence.nextTokenIndex;
  const file = path.join(process.env.STET_PEERS_DIR, `peer-${process.pid}.state`);
  const times = {save: [], sync: [], restore: [], token: []};
  try {
    for (let i = 0; i < job.repeat; ++i) {
      times.save.push(await time(() => sequence.saveStateToFile(file)));
      times.sync.push(await time(() => sync(file)));
      await sequence.clearHistory();
      times.restore.push(await time(() => sequence.loadStateFromFile(file, {acceptRisk: true})));
      times.token.push(await append());
    }
    return {
      positions, bytes: fs.statSync(file).size, save_s: median(times.save), sync_s: median(times.sync),
      restore_s: median(times.restore), restored_token_s: median(times.token), peak_bytes,
    };
  } finally {
    fs.rmSync(file, {force: true});
  }
}

// Answers like `stet bench --turns`, with figures of the same names. After each step the API draws
// a token, here greedily. The time of single tokens excludes that and JavaScript; `clock_s`
// includes everything.
async function turns() {
  const ids = Array.from({length: job.prompt}, (_, i) => (i * 7919 + 13) % job.vocab);
  const contextSize = job.prompt + job.decode + 8;
  let run, tokens;  // the generator of a prompt, which takes given tokens instead of those that it draws
  const load_s = await time(async () => { run = await open({contextSize, flashAttention: job.flash}); });
  const {context, sequence} = run;
  if (context.currentThreads !== job.threads)
    throw new Error(`${job.threads} threads wanted, ${context.currentThreads} given`);
  const append = async (prompt) => {
    await tokens?.return();
    tokens = sequence.evaluate(prompt, greedy);
    return time(() => tokens.next());
  };
  const prefill = async () => {
    await sequence.clearHistory();
    const s = await append(ids);
    await decoded(context);
    return {s};
  };
  const decode = async (n) => {
    const clock_s = await time(async () => {
      for (let i = 0; i < n; ++i) await tokens.next(ids[0]);
    });
    const {s, tokens: found} = await decoded(context);
    if (found !== n) throw new Error(`${n} tokens wanted, ${found} processed`);
    return {s, clock_s};
  };
  print({load_s, first_token_s: await append(ids.slice(0, 1))});
  for await (const line of readline.createInterface({input: process.stdin})) {
    const n = /^decode ([1-9][0-9]*)$/.exec(line)?.[1];
    if (line === "prefill") print(await prefill());
    else if (n) print(await decode(Number(n)));
    else if (line === "state") print(await tokens.return().then(() => state(sequence, () => append(ids.slice(0, 1)))));
    else throw new Error(`expected prefill, decode N or state, found ${line}`);
  }
}

// Returns a greedy continuation of job.ids. Writes the last job.rows rows of the logits to
// job.logits as float32.
async function compute() {
  const {sequence} = await open({contextSize: job.ids.length + job.tokens + 8, flashAttention: false, kv: "F32"});
  const ids = [];
  for await (const token of sequence.evaluate(job.ids, greedy)) {
    ids.push(token);
    if (ids.length === job.tokens) break;
  }
  await sequence.clearHistory();
  const all = [...job.ids, ...(job.then ?? ids)];
  const wanted = (i) => i >= all.length - job.rows;
  const outputs = await sequence.controlledEvaluate(
    all.map((id, i) => (wanted(i) ? [id, {generateNext: {logits: true}}] : id)));
  const logits = new Float32Array(job.rows * job.vocab);
  for (let row = 0; row < job.rows; ++row) {
    for (const [id, logit] of outputs[all.length - job.rows + row].next.logits) logits[row * job.vocab + id] = logit;
  }
  fs.writeFileSync(job.logits, logits);
  print({ids});
}

function about() {
  const maps = fs.readFileSync("/proc/self/maps", "utf8");
  print({
    version: JSON.parse(fs.readFileSync(path.join(package_, "package.json"))).version,
    release: llama.llamaCppRelease.release,
    kernels: /libggml-cpu-(\w+)\.so/.exec(maps)?.[1] ?? "unknown",
    system: llama.systemInfo,
  });
}

const tasks = {turns, compute, about};
try {
  await tasks[job.task]();
} catch (e) {
  const said = log.filter(({level}) => level === "error" || level === "fatal").map(({line}) => line.trim());
  console.error([e.stack, ...said, e.message].join("\n"));
  process.exit(1);
}
process.exit(0);
