// Deleted states that can be restored. For a minute a deletion is only recorded, in the browser's storage. A reloaded
// page, or another page of the same server, reads it there and sends deletions that are due. Pages with another API key
// leave it alone: to them the server denies that the state exists.
const kKey = "deleted", kMilliseconds = 60000, kPause = 5000;

export class Trash {
  // `remove(id)` deletes on the server; `changed()` is called after every change; `storage` is as localStorage.
  // `client()` tells apart whose deletions these are.
  constructor({ storage, remove, changed, client = () => "", now = Date.now }) {
    Object.assign(this, { storage, remove, changed, client, now, sending: false, notBefore: 0 });
    this.reload();
  }

  // Reads what another page has recorded.
  reload() {
    try {
      const noted = JSON.parse(this.storage.getItem(kKey) ?? "[]");
      this.batches = Array.isArray(noted) ? noted.filter((b) => Array.isArray(b.ids) && Number.isFinite(b.until)) : [];
    } catch {
      this.batches = [];
    }
  }

  write() {
    this.storage.setItem(kKey, JSON.stringify(this.batches));
    this.changed();
  }

  // Returns this client's deletions.
  own() { return this.batches.filter((b) => (b.client ?? "") === this.client()); }

  has(id) { return this.own().some((b) => b.ids.includes(id)); }

  // Returns the latest deletion that can be undone, and the seconds left.
  latest() {
    const batch = this.own().filter((b) => b.until > this.now()).at(-1);
    return batch ? { ...batch, seconds: Math.ceil((batch.until - this.now()) / 1000) } : null;
  }

  put(ids, label) {
    this.reload();
    this.batches.push({ ids, label, until: this.now() + kMilliseconds, client: this.client() });
    this.write();
  }

  // Undoes the latest deletion. Returns the ids of the restored states.
  undo() {
    this.reload();
    const batch = this.latest();
    if (!batch) return [];
    this.batches = this.batches.filter((b) => b.until !== batch.until || b.ids[0] !== batch.ids[0]);
    this.write();
    return batch.ids;
  }

  // Keeps a state that an operation has made again.
  keep(id) {
    if (!this.has(id)) return;
    this.reload();
    for (const b of this.own()) b.ids = b.ids.filter((other) => other !== id);
    this.batches = this.batches.filter((b) => b.ids.length > 0);
    this.write();
  }

  // Deletes states that are due. After a failure, a call after a pause tries again.
  async send() {
    if (this.sending || this.now() < this.notBefore) return;
    this.sending = true;
    try {
      for (;;) {
        const due = this.own().find((b) => b.until <= this.now());
        if (!due) return;
        const id = due.ids.at(-1);
        await this.remove(id).catch((error) => { if (error.status !== 404) throw error; });
        this.reload();
        const same = this.own().find((b) => b.until === due.until && b.ids.includes(id));
        if (same) same.ids = same.ids.filter((other) => other !== id);
        this.batches = this.batches.filter((b) => b.ids.length > 0);
        this.write();
      }
    } catch {
      this.notBefore = this.now() + kPause;
    } finally {
      this.sending = false;
    }
  }
}
