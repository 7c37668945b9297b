// The programs that stet is measured beside. Each: about(threads), a line; prepare(job), once before the runs of a job; measure(job),
// figures of a process in the shape of those of `stet bench --json`; rows, the figures it has, where it lacks some.
import fs from "node:fs";

import {Failure, median, peer, run, say} from "./tools.mjs";

// llama.cpp from npm, with flash attention or without, whichever is faster here; finding out also brings its file into memory.
export const llama = {
  about(threads) {
    const p = peer({task: "about", threads});
    return `llama.cpp ${p.release} by node-llama-cpp ${p.version}, kernels ${p.kernels}`;
  },
  prepare(job) {
    say(`prompt of ${job.prompt}: is the peer faster with flash attention?`);
    const cost = (flash) => {
      const {prefill, decode} = peer({...job, flash});
      return prefill.tokens / prefill.tokens_per_s + decode.tokens / decode.tokens_per_s;
    };
    return {...job, flash: cost(true) <= cost(false)};
  },
  measure: peer,
};

// ik_llama.cpp by its llama-bench: weights repacked while loading, flash attention, decoding behind the prompt as stet does.
export function ikLlama(bench) {
  if (!fs.existsSync(bench)) throw new Failure(`${bench}: not there; expected ik_llama.cpp's llama-bench`);
  const tests = (job, ...which) => JSON.parse(run(bench, [
    "-m", job.gguf, "-t", job.threads, "-ub", job.batch, "-rtr", 1, "-fa", 1, "-r", job.repeat, "-o", "json", "-n", 0, ...which]));
  return {
    rows: ["prefill", "decode"],
    about: () => `ik_llama.cpp, ${bench}`,
    prepare(job) {
      tests({...job, repeat: 1}, "-p", 1);  // brings its file into memory
      return {...job, flash: true};
    },
    measure(job) {
      const rate = (test) => {
        if (!test) throw new Failure(`${bench}: expected the results of two tests, found fewer`);
        return {tokens_per_s: median(test.samples_ts)};
      };
      const [prefill, decode] = tests(job, "-p", job.prompt, "-gp", `${job.prompt},${job.decode}`);
      return {prefill: rate(prefill), decode: rate(decode)};
    },
  };
}
