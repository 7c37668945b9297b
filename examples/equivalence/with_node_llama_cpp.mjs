// Tests llama.cpp through its JavaScript bindings: with_node_llama_cpp.mjs MODEL.gguf (package
// node-llama-cpp; tried with 3.22)
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { getLlama, LlamaLogLevel } from "node-llama-cpp";

const llama = await getLlama({ gpu: false, logLevel: LlamaLogLevel.error, build: "never" });
const model = await llama.loadModel({ modelPath: process.argv[2] });
const context = await model.createContext({ contextSize: 4096, threads: 1 });
const sequence = context.getSequence();
const directory = mkdtempSync(join(tmpdir(), "equivalence-"));

async function logits(ids, cuts, question) {
  // The bindings copy no sequences and make their own batches.
  if ("fork_at" in question || "batch" in question) return null;
  await sequence.clearHistory();
  const ends = [...cuts, ids.length];
  let done = 0, last;
  for (const end of ends) {
    const piece = ids.slice(done, end);
    const input = end < ids.length ? piece
      : [...piece.slice(0, -1), [piece.at(-1), { generateNext: { logits: true } }]];
    last = await sequence.controlledEvaluate(input);
    done = end;
    if (done === question.save_at && done < ids.length) {
      await sequence.saveStateToFile(join(directory, "s"));
      await sequence.clearHistory();
      await sequence.loadStateFromFile(join(directory, "s"), { acceptRisk: true });
    }
    if (done === question.rewind_at && done < ids.length) {
      await sequence.evaluateWithoutGeneratingNewTokens(ids.slice(0, 5));
      await sequence.eraseContextTokenRanges([{ start: done, end: done + 5 }]);
    }
  }
  return [...last.at(-1).next.logits].sort(([a], [b]) => a - b).map(([, x]) => x);
}

for await (const line of createInterface({ input: process.stdin })) {
  const question = JSON.parse(line), answer = await logits(question.ids, question.cuts, question);
  console.log(JSON.stringify(answer === null ? { unsupported: true } : { logits: answer }));
}
rmSync(directory, { recursive: true });
await llama.dispose();
