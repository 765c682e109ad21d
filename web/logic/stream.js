// Server-sent events out of a stream of text. The browser's own reader of them cannot send a header, and a credential goes
// into a header and nowhere else.

/** Takes text as it comes and gives the events that are whole. */
export class EventReader {
  #rest = "";
  #event = { kind: "message", data: [], id: null };
  /** The id of the last event, by which a broken stream goes on. */
  lastId = null;

  push(text) {
    const found = [];
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (this.#event.id !== null) this.lastId = this.#event.id;
        if (this.#event.data.length) found.push({ kind: this.#event.kind, data: this.#event.data.join("\n") });
        this.#event = { kind: "message", data: [], id: null };
        continue;
      }
      const colon = line.indexOf(":");
      if (colon === 0) continue;
      const field = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (field === "event") this.#event.kind = value;
      else if (field === "data") this.#event.data.push(value);
      else if (field === "id" && !value.includes("\0")) this.#event.id = value;
    }
    return found;
  }
}
