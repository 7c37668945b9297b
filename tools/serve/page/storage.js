// Browser storage. In a browser that stores nothing, the page keeps its notes in memory.

// Returns "localStorage" or "sessionStorage", or a replacement if the browser refuses to give it or to write to it.
export function storage(name) {
  try {
    const found = globalThis[name];
    found.setItem("kept", "1");
    found.removeItem("kept");
    return found;
  } catch {
    const kept = new Map();
    return { getItem: (k) => kept.get(k) ?? null, setItem: (k, v) => kept.set(k, v),
      removeItem: (k) => kept.delete(k) };
  }
}

export const kept = storage("localStorage"); // shared by the tabs of a browser
const tab = storage("sessionStorage");

export const apiKey = () => tab.getItem("key") ?? "";
export const setApiKey = (key) => tab.setItem("key", key);

// Returns 32 bits of a key's hash, which tell the clients of a browser apart and do not give a key away.
export function markOf(key) {
  let hash = 0x811c9dc5; // FNV-1a; the browser's own hashes need TLS
  for (const byte of new TextEncoder().encode(key)) hash = Math.imul(hash ^ byte, 0x01000193) >>> 0;
  return key && hash.toString(16);
}
