// One process of the peer, llama.cpp through node-llama-cpp: `node peer.mjs '{"task": ..., ...}'` prints one JSON object.
import fs from "node:fs";
import path from "node:path";
import {pathToFileURL} from "node:url";

const job = JSON.parse(process.argv[2]);
const package_ = path.join(process.env.STET_PEERS_DIR, "node_modules/node-llama-cpp");
const {getLlama, LlamaLogLevel} = await import(pathToFileURL(path.join(package_, "dist/index.js")));

const greedy = {temperature: 0, yieldEogToken: true};
const seconds = () => performance.now() / 1e3;
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
  const model = await llama.loadModel({modelPath: job.gguf, gpuLayers: 0, useMmap: true, ignoreMemorySafetyChecks: true});
  const context = await model.createContext({
    contextSize, batchSize: job.batch, threads: {ideal: job.threads, min: job.threads}, flashAttention, ignoreMemorySafetyChecks: true, performanceTracking: true,
    experimentalKvCacheKeyType: kv, experimentalKvCacheValueType: kv,
  });
  return {model, context, sequence: context.getSequence({checkpoints: {interval: false}})};
}

// By llama.cpp's own clock: s in which it has processed tokens one by one since this was last asked, and how many.
async function decoded(context) {
  log.length = 0;
  await context.printTimings();
  const found = log.map(({line}) => /perf_context_print: +eval time = +([\d.]+) ms \/ +(\d+) runs/.exec(line)).find((m) => m);
  if (!found) throw new Error("llama.cpp did not say how long it took");
  return {s: Number(found[1]) / 1e3, tokens: Number(found[2])};
}

// Processes ids, then forced.length single tokens that are given, not drawn; s of both. The API draws a token after each
// step, greedily here, which the time of the single tokens leaves out, and JavaScript too: `clock` has all.
async function speak({context, sequence}, ids, forced) {
  const tokens = sequence.evaluate(ids, greedy);
  const prefill = await time(() => tokens.next());
  await decoded(context);
  const clock = await time(async () => {
    for (const id of forced) await tokens.next(id);
  });
  const decode = await decoded(context);
  await tokens.return();
  if (forced.length > 0 && decode.tokens !== forced.length) throw new Error(`${forced.length} tokens wanted, ${decode.tokens} processed`);
  return {prefill, decode: decode.s, clock};
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

// The figures of `stet bench --json`, under the same names.
async function measure() {
  const ids = Array.from({length: job.prompt}, (_, i) => (i * 7919 + 13) % job.vocab);
  const forced = Array(job.decode).fill(ids[0]);
  let run;
  const load_s = await time(async () => { run = await open({contextSize: job.prompt + job.decode + 8, flashAttention: job.flash}); });
  const {context, sequence} = run;
  if (context.currentThreads !== job.threads) throw new Error(`${job.threads} threads wanted, ${context.currentThreads} given`);
  const first = await speak(run, ids.slice(0, 1), []);
  const steps = [];
  for (let i = 0; i < job.repeat; ++i) {
    await sequence.clearHistory();
    steps.push(await speak(run, ids, forced));
  }
  const peak_bytes = peakBytes();
  const positions = sequence.nextTokenIndex;
  if (positions !== job.prompt + job.decode) throw new Error(`${job.prompt + job.decode} positions wanted, ${positions} found`);

  const file = path.join(process.env.STET_PEERS_DIR, `peer-${process.pid}.state`);
  const state = {save: [], sync: [], restore: [], token: []};
  try {
    for (let i = 0; i < job.repeat; ++i) {
      state.save.push(await time(() => sequence.saveStateToFile(file)));
      state.sync.push(await time(() => sync(file)));
      await sequence.clearHistory();
      state.restore.push(await time(() => sequence.loadStateFromFile(file, {acceptRisk: true})));
      state.token.push((await speak(run, ids.slice(0, 1), [])).prefill);
    }
    state.bytes = fs.statSync(file).size;
  } finally {
    fs.rmSync(file, {force: true});
  }
  return {
    load_s, first_token_s: first.prefill, peak_bytes,
    prefill: {tokens: job.prompt, tokens_per_s: job.prompt / median(steps.map((s) => s.prefill))},
    decode: {tokens: job.decode, tokens_per_s: job.decode / median(steps.map((s) => s.decode)),
             clock_tokens_per_s: job.decode / median(steps.map((s) => s.clock))},
    state: {
      positions, bytes: state.bytes, save_s: median(state.save), sync_s: median(state.sync),
      restore_s: median(state.restore), restored_token_s: median(state.token),
    },
  };
}

// A greedy continuation of job.ids, and in job.logits, as float32, the logits of the last job.rows positions of both.
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
  const outputs = await sequence.controlledEvaluate(all.map((id, i) => (wanted(i) ? [id, {generateNext: {logits: true}}] : id)));
  const logits = new Float32Array(job.rows * job.vocab);
  for (let row = 0; row < job.rows; ++row) {
    for (const [id, logit] of outputs[all.length - job.rows + row].next.logits) logits[row * job.vocab + id] = logit;
  }
  fs.writeFileSync(job.logits, logits);
  return {ids};
}

function about() {
  const maps = fs.readFileSync("/proc/self/maps", "utf8");
  return {
    version: JSON.parse(fs.readFileSync(path.join(package_, "package.json"))).version,
    release: llama.llamaCppRelease.release,
    kernels: /libggml-cpu-(\w+)\.so/.exec(maps)?.[1] ?? "unknown",
    system: llama.systemInfo,
  };
}

const tasks = {measure, compute, about};
try {
  console.log(JSON.stringify(await tasks[job.task]()));
} catch (e) {
  const said = log.filter(({level}) => level === "error" || level === "fatal").map(({line}) => line.trim());
  console.error([e.stack, ...said, e.message].join("\n"));
  process.exit(1);
}
process.exit(0);
