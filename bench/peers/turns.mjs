// Lets two programs take turns of seconds or less. If a machine's memory is slow for seconds or
// minutes, both programs meet the same conditions.
import fs from "node:fs";
import {setTimeout as sleep} from "node:timers/promises";

import {say} from "./processes.mjs";

// Pause in ms before each turn: threads of the other program spin for up to 12 ms before they
// sleep.
const kPause = 20;

// Returns CPU time in ticks: all of all processors, the used part of it, and that of these processes and this one.
function ticks(pids) {
  const sum = (x) => x.reduce((s, v) => s + Number(v), 0);
  const all = fs.readFileSync("/proc/stat", "utf8").split("\n", 1)[0].split(/ +/).slice(1, 9);
  const times = (pid) => fs.readFileSync(`/proc/${pid}/stat`, "utf8").replace(/.*\) /, "").split(" ").slice(11, 15);
  return {all: sum(all), used: sum(all) - all[3] - all[4], own: sum(["self", ...pids].map((pid) => sum(times(pid))))};
}

// Sends `line` to both in this order.
async function pair(talkers, line, order) {
  const answers = {};
  for (const name of order) {
    await sleep(kPause);
    answers[name] = await talkers[name].ask(line);
  }
  return answers;
}

// Runs rounds of a prefill and of slices of decoding, each by one of two programs and then by the other. The order
// alternates. Returns [{prefill: {tokens, NAME: {s}, ...}, decode: [the same for each slice], others}]. `others` is the
// share of the machine's CPU time that other processes took in a round. Ticks of 10 ms are too coarse for a slice.
export async function inTurn(talkers, {prompt, decode, slice, runs}, what) {
  const names = Object.keys(talkers), orders = [names, names.toReversed()];
  const pids = names.map((name) => talkers[name].pid), rounds = [];
  for (let round = 0; round < runs; ++round) {
    say(`${what}: round ${round + 1} of ${runs}`);
    let turn = round;
    const before = ticks(pids), next = () => orders[turn++ % 2];
    const prefill = {tokens: prompt, ...await pair(talkers, "prefill", next())}, slices = [];
    for (let left = decode; left > 0; left -= slice) {
      const tokens = Math.min(slice, left);
      slices.push({tokens, ...await pair(talkers, `decode ${tokens}`, next())});
    }
    const after = ticks(pids), spent = (name) => after[name] - before[name];
    rounds.push({prefill, decode: slices, others: Math.max(0, (spent("used") - spent("own")) / spent("all"))});
  }
  return rounds;
}
