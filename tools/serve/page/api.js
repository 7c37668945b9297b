// The server's API. Requests that fail because the server does not answer are repeated until it does.
import { apiKey } from "./storage.js";

const listeners = [];
export const onLost = (listener) => listeners.push(listener);
const tell = (lost) => listeners.forEach((listener) => listener(lost));
const wait = (ms) => new Promise((done) => setTimeout(done, ms));

function headers(body) {
  const all = new Headers();
  if (body) all.set("Content-Type", body instanceof Blob ? "application/octet-stream" : "application/json");
  if (apiKey()) all.set("Authorization", "Bearer " + apiKey()); // throws for a key that no server can have
  return all;
}

// Repeats GET requests, which change nothing. A request that makes a state is sent once.
async function ask(method, path, body, signal) {
  const request = { method, signal, headers: headers(body),
    body: body instanceof Blob ? body : body && JSON.stringify(body) };
  for (let pause = 250; ; pause = Math.min(pause * 2, 4000)) {
    try {
      const answer = await fetch(path, request);
      tell(false);
      return answer;
    } catch (error) {
      if (error.name === "AbortError") throw error;
      tell(true);
      if (method !== "GET") throw new Error("The server did not answer.");
      await wait(pause);
      signal?.throwIfAborted();
    }
  }
}

async function checked(answer) {
  if (answer.ok) return answer;
  let message = answer.statusText;
  let param = null;
  try { ({ message, param } = (await answer.json()).error); } catch { /* no JSON: the status says what there is */ }
  const error = new Error(message);
  error.param = param;
  error.status = answer.status;
  throw error;
}

export const get = async (path, signal) => (await checked(await ask("GET", path, undefined, signal))).json();
export const post = async (path, body, signal) => (await checked(await ask("POST", path, body ?? {}, signal))).json();
export const patch = async (path, body) => (await checked(await ask("PATCH", path, body))).json();
export const remove = async (path) => (await checked(await ask("DELETE", path))).json();
export const download = async (path) => (await checked(await ask("GET", path))).blob();

// Yields the events of a stream. Leaving the loop, or the signal, ends the work on the server.
export async function* events(path, body, signal) {
  const answer = await checked(await ask("POST", path, { ...body, stream: true }, signal));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const line = part.split("\n").find((l) => l.startsWith("data: "));
      if (!line || line === "data: [DONE]") continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

// Uploads a file. `over` is the id of the state that a delta was made over.
export const upload = async (file, over) => (await checked(
  await ask("POST", "/v1/states/upload" + (over ? "?over=" + over : ""), file))).json();
