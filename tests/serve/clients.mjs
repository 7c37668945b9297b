// Runs other projects' clients, the openai and Anthropic packages and the AI SDK, against a server
// of pocket-llama3.
//   node clients.mjs http://127.0.0.1:PORT [TRANSCRIPT]
//     needs openai, @anthropic-ai/sdk, ai, @ai-sdk/openai-compatible
// Writes their requests and the responses to the file TRANSCRIPT, which tests/serve/clients.py
// replays.
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import Anthropic from "@anthropic-ai/sdk";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";
import OpenAI from "openai";

const [address, file] = process.argv.slice(2), model = "pocket-llama3";
const transcript = [], read = [];

// Returns a client's fetch that records requests and responses. A request that the client abandons
// is recorded without a response.
const noted = (client) => async (url, options = {}) => {
  const headers = new Headers(options.headers), answer = await fetch(url, options);
  const entry = {
    client, method: options.method ?? "GET", path: String(url).slice(address.length), accept: headers.get("accept"),
    body: options.body ? JSON.parse(options.body) : null, status: answer.status
  };
  transcript.push(entry);
  read.push(answer.clone().text().then((text) => {
    entry.type = answer.headers.get("content-type");
    entry.answer = text;
  }, () => { entry.left = true; }));
  return answer;
};
const messages = [{ role: "user", content: "Let a = 3. What is a?" }];

const openai = new OpenAI({ baseURL: address + "/v1", apiKey: "none", maxRetries: 0, fetch: noted("openai") });
assert.equal((await openai.models.list()).data[0].id, model);
assert.equal((await openai.models.retrieve(model)).id, model);
const chat = await openai.chat.completions.create({ model, messages, logprobs: true, top_logprobs: 2 });
assert.equal(chat.choices[0].message.content, "a is 3.");
assert.equal(chat.choices[0].logprobs.content[0].top_logprobs.length, 2);
console.log("openai chat:", chat.choices[0].message.content, chat.state_id);

let text = "", usage;
for await (const chunk of await openai.chat.completions.create({
  model, messages, stream: true, stream_options: { include_usage: true }
})) {
  text += chunk.choices[0]?.delta.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(text, "a is 3.");
assert.ok(usage.prompt_tokens_details.cached_tokens > 0);
console.log("openai stream:", text, JSON.stringify(usage));

const one = await openai.responses.create({ model, input: "Let a = 6." });
const two = await openai.responses.create({ model, input: "What is a?", previous_response_id: one.id });
assert.match(two.output_text, /6/);
assert.equal((await openai.responses.retrieve(two.id)).output_text, two.output_text);
const stream = openai.responses.stream({ model, input: "What is a?", previous_response_id: one.id });
let created;
stream.on("response.created", (event) => { created = event.response.id; });
const last = await stream.finalResponse();
assert.equal(last.output_text, two.output_text);
assert.equal(last.id, created);
assert.equal((await openai.responses.retrieve(created)).output_text, two.output_text);
await openai.responses.delete(two.id);
await assert.rejects(openai.responses.retrieve(two.id), { status: 404 });
console.log("openai responses:", one.output_text, "|", two.output_text);

const long = await openai.chat.completions.create({ model, messages, stream: true,
  temperature: 5, seed: 1, max_tokens: 1900 });
for await (const chunk of long) {
  if (chunk.choices[0]?.delta.content) long.controller.abort();
}
for (let i = 0; (await (await fetch(address + "/v1/status")).json()).running > 0; ++i) assert.ok(i < 1000);
console.log("openai abort: nothing runs");

const vectors = await openai.embeddings.create({ model, input: "Hello" });
assert.ok(vectors.data[0].embedding.length > 0 && vectors.data[0].embedding.some((x) => x !== 0));
await assert.rejects(openai.chat.completions.create({
  model, messages, tools: [{ type: "function", function: { name: "f" } }]
}), { status: 400, param: "/tools" });
console.log("openai embeddings:", vectors.data[0].embedding.length, "numbers; tools are refused by name");

const anthropic = new Anthropic({ baseURL: address, apiKey: "none", maxRetries: 0, fetch: noted("anthropic") });
const message = await anthropic.messages.create({ model, max_tokens: 50, messages });
assert.equal(message.content[0].text, "a is 3.");
assert.equal((await anthropic.messages.countTokens({ model, messages })).input_tokens,
  message.usage.input_tokens + message.usage.cache_read_input_tokens);
const begun = await anthropic.beta.messages.create({ model, max_tokens: 50,
  messages: [...messages, { role: "assistant", content: "a" }] });
assert.equal("a" + begun.content[0].text, "a is 3.");
const streamed = await anthropic.messages.stream({ model, max_tokens: 50, messages }).finalMessage();
assert.equal(streamed.content[0].text, "a is 3.");
console.log("anthropic:", message.content[0].text, message.stop_reason);

const provider = createOpenAICompatible({ name: "stet", baseURL: address + "/v1",
  includeUsage: true, fetch: noted("AI SDK") });
const generated = await generateText({ model: provider(model), messages, maxRetries: 0 });
assert.equal(generated.text, "a is 3.");
let piece = "";
for await (const part of streamText({ model: provider(model), messages, maxRetries: 0 }).textStream) piece += part;
assert.equal(piece, "a is 3.");
console.log("AI SDK:", generated.text, generated.finishReason);

await Promise.all(read);
if (file) writeFileSync(file, "[" + transcript.map((entry) => JSON.stringify(entry)).join(",\n") + "]\n");
