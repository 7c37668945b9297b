// The sampling settings. An empty field keeps the state's own setting, which it shows in grey.
import { $, plainNumber } from "./dom.js";

// Keeps seeds within the integers that a double represents, even after additions.
export const kMostSeed = 2 ** 53 - 1e6;
const kNames = ["temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "seed", "max_tokens"];
const kLabels = {
  temperature: "temperature", top_k: "top-k", top_p: "top-p", min_p: "min-p", typical_p: "typical-p",
  repetition_penalty: "repetition penalty", seed: "seed"
};
const kNeutral = { top_k: 0, top_p: 1, min_p: 0, typical_p: 1, repetition_penalty: 1 };

const inputs = () => kNames.map($);

// Returns the settings. Throws for an invalid field, and marks it.
export function readSettings() {
  const settings = {};
  for (const input of inputs()) {
    if (!input.checkValidity()) {
      $("settings").open = true;
      input.reportValidity();
      throw new Error(`${input.labels[0].firstChild.textContent.trim()}: ${input.validationMessage}`);
    }
    if (input.value !== "") settings[input.id] = Number(input.value);
  }
  return settings;
}

// Returns the seed for another reply. Adding to a seed that a double cannot represent would change nothing.
export function nextSeed(seed) {
  if (Number.isSafeInteger(seed) && seed + 1 < kMostSeed) return seed + 1;
  const [high, low] = crypto.getRandomValues(new Uint32Array(2));
  return (high % 2 ** 20) * 2 ** 32 + low;
}

const seedText = (seed) => Number.isSafeInteger(seed) ? String(seed) : "above 2^53 (see State)";

// Returns a line with the settings that a reply was drawn with.
export function drawnWith(sampling) {
  if (sampling.greedy) return "greedy: always the likeliest token";
  const said = Object.keys(kLabels).filter((name) => name in sampling && sampling[name] !== kNeutral[name]);
  return "drawn with " + said.map((name) =>
    `${kLabels[name]} ${name === "seed" ? seedText(sampling.seed) : plainNumber(sampling[name])}`).join(", ");
}

// Shows the state's own settings in empty fields.
export function showSettings(sampling) {
  for (const input of inputs()) {
    if (input.id === "max_tokens") continue;
    const value = sampling?.[input.id];
    input.placeholder = value === undefined ? "default" : input.id === "seed" ? seedText(value) : plainNumber(value);
  }
  summarize();
}

function summarize() {
  const set = inputs().filter((i) => i.value !== "" && i.id !== "max_tokens").map((i) => `${kLabels[i.id]} ${i.value}`);
  $("settings-set").textContent = set.join(" · ");
  $("settings-reset").disabled = set.length === 0;
}

export function wireSettings() {
  for (const input of inputs()) input.addEventListener("input", summarize);
  $("settings-reset").addEventListener("click", () => {
    for (const input of inputs()) if (input.id !== "max_tokens") input.value = "";
    summarize();
  });
}
