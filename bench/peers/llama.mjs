// Runs llama.cpp from npm through peer.mjs, in a separate process.
import path from "node:path";

import {Talker, run, say} from "./processes.mjs";
import {root} from "./tools.mjs";
import {inTurn} from "./turns.mjs";

const command = (job) => [process.execPath, [path.join(root, "bench/peers/peer.mjs"), JSON.stringify(job)]];

export const peer = async (job) => JSON.parse(await run(...command(job)));

const start = (job) => Talker.start(...command({task: "turns", ...job}));

export const llama = {
  hasState: true,
  async about({threads}) {
    const p = await peer({task: "about", threads});
    return `llama.cpp ${p.release} by node-llama-cpp ${p.version}, kernels ${p.kernels}`;
  },
  // Chooses flash attention on or off, whichever is faster here. The trial also loads the file into
  // memory.
  async prepare(job) {
    const talkers = {on: await start({...job, flash: true}), off: await start({...job, flash: false})};
    const [{prefill, decode}] = await inTurn(talkers, {...job, runs: 1}, "flash attention on or off?");
    for (const talker of Object.values(talkers)) await talker.end();
    const cost = (name) => [prefill, ...decode].reduce((s, turn) => s + turn[name].s, 0);
    return {...job, flash: cost("on") <= cost("off")};
  },
  start,
};
