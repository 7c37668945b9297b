// Tables of figures of rounds and processes, as [first quartile, median, third quartile] or a
// single number. Ratios above 1 favour stet.

// A round is undisturbed if other processes took no more than this share of the machine's CPU time.
const kDisturbance = 0.05;

// Figures that are read once from each side's process. The peer's save is followed by an fsync, as
// stet's is.
const once = [
  {name: "load, s", of: (p) => p.load_s},
  {name: "load and first token, s", of: (p) => p.load_s + p.first_token_s},
  {name: "peak memory, MB", of: (p) => p.peak_bytes / 1e6},
  {name: "state: file, MB", of: (p) => p.bytes / 1e6},
  {name: "state: save, fsync, ms", of: (p) => 1e3 * (p.save_s + (p.sync_s ?? 0))},
  {name: "state: save, peer without fsync, ms", of: (p) => 1e3 * p.save_s},
  {name: "state: load, ms", of: (p) => 1e3 * p.restore_s},
  {name: "state: load and next token, ms", of: (p) => 1e3 * (p.restore_s + p.restored_token_s)},
];

function quartiles(x) {
  const sorted = x.toSorted((a, b) => a - b);
  return [0.25, 0.5, 0.75].map((share) => {
    const at = share * (x.length - 1), below = Math.floor(at);
    return sorted[below] + (at - below) * (sorted[Math.ceil(at)] - sorted[below]);
  });
}

// Returns medians and quartiles over the pairs of turns in undisturbed rounds, or in all if none is
// undisturbed.
export function figuresOf(rounds, {stet, peer}) {
  const quiet = rounds.filter((round) => round.others <= kDisturbance), counted = quiet.length > 0 ? quiet : rounds;
  const rate = (name, pairs) => {
    const of = (side) => quartiles(pairs.map((pair) => pair.tokens / pair[side].s));
    const ratio = quartiles(pairs.map((pair) => pair.peer.s / pair.stet.s));
    return {name, stet: of("stet"), peer: of("peer"), ratio, pairs: pairs.length};
  };
  const rates = [rate("prefill, tokens/s", counted.map((round) => round.prefill)),
                 rate("decode, tokens/s", counted.flatMap((round) => round.decode))];
  const single = ({name, of}) => ({name, stet: [of(stet)], peer: [of(peer)], ratio: [of(peer) / of(stet)]});
  const states = peer.bytes === undefined ? [] : once.map(single);
  return {undisturbed: quiet.length, others: counted.map((round) => round.others), figures: [...rates, ...states]};
}

const show = (x) => (x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toPrecision(2));
const cell = (values, text) => {
  const [low, middle, high] = values.length === 1 ? [, ...values] : values;
  return low === undefined ? text(middle) : `${text(middle)} (${text(low)}–${text(high)})`;
};

export function printHeader(checkpoint, peer, o) {
  console.log(`${checkpoint}, ${o.threads} threads, in turn: medians (and quartiles) of turns, --runs ${o.runs}`);
  console.log(`peer: ${peer}, batch ${o.batch}, keys and values f16; stet: keys and values ${o.kv}`);
}

export function printTable(name, m, o) {
  if (m.skipped) return console.log(`\n${name}: SKIPPED, stet refuses it: ${m.skipped}`);
  const line = (what, stet, peer, ratio, pairs) => {
    console.log(what.padEnd(37) + stet.padStart(22) + peer.padStart(22) +
                ratio.padStart(20) + String(pairs).padStart(8));
  };
  console.log(`\n${name}: prompt of ${o.prompt}, then ${o.decode} tokens, ${o.slice} in a turn; ` +
               `stet ${m.isa}, the peer's flash ` +
              `attention ${m.flash_attention ? "on" : "off"}`);
  line("", "stet", "peer", "stet better by", "pairs");
  for (const f of m.figures)
    line(f.name, cell(f.stet, show), cell(f.peer, show), cell(f.ratio, (x) => x.toFixed(2)), f.pairs ?? "");
  const others = [Math.min(...m.others), Math.max(...m.others)].map((x) => (100 * x).toFixed(0)).join("–");
  const took = `other processes took ${others} % of the CPU time`;
  console.log(m.undisturbed > 0 ?
              `${m.undisturbed} of ${m.rounds.length} rounds were undisturbed: only they count; ${took}` :
              `BUSY: no round was undisturbed: ${took}; this compares nothing ` +
              "(the peer's threads spin while one waits for a core)");
}

export function printNotes({hasState}) {
  console.log(`
f32: bfloat16 weights that stet widens as it multiplies, against the same values as float32 in the peer's file: ` +
`decoding reads
half the bytes in stet. Other formats: the same bits per weight on both sides.`);
  if (!hasState) return;
  console.log(`Peak memory: of a process until the last decoded token; the peer's includes node. ` +
              `Load: the file's pages are in memory; the
peer maps it, stet packs its weights.`);
}
