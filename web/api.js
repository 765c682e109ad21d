// Asking the node that served this page, and hearing from it. Reads the public interface and nothing else.

import { bearerIn } from "./logic/credential.js";
import { parse } from "./logic/metrics.js";
import { EventReader } from "./logic/stream.js";
import { inPath } from "./logic/words.js";

const ANSWER_WITHIN_MS = 8_000;
const WATCH_AGAIN_MS = 1_000;

// What is presented with every call. Here and nowhere else: not in storage, not in a cookie, not in an address. It is
// gone with the page.
let bearer = null;

/** Presents what was pasted from now on; false if that is no credential. */
export function signIn(text) {
  const found = bearerIn(text);
  if (found !== null) bearer = found;
  return found !== null;
}

export function signOut() {
  bearer = null;
}

export const isSignedIn = () => bearer !== null;

const presented = () => (bearer === null ? {} : { authorization: `Bearer ${bearer}` });

/** A refusal in the server's own words. */
export class Refused extends Error {
  constructor(error, status) {
    super(error.message);
    this.code = error.code;
    this.hint = error.hint ?? null;
    this.status = status;
    this.about = error;
  }
}

async function call(path, { method = "GET", body = undefined } = {}) {
  const answer = await fetch(path, {
    method,
    cache: "no-store",
    credentials: "omit",
    headers: presented(),
    body: body === undefined ? undefined : JSON.stringify(body),
    signal: AbortSignal.timeout(ANSWER_WITHIN_MS),
  });
  const text = await answer.text();
  if (answer.headers.get("content-type")?.startsWith("application/json")) {
    const value = JSON.parse(text);
    if (!answer.ok) throw new Refused(value.error ?? { code: "other", message: answer.statusText }, answer.status);
    return value;
  }
  if (!answer.ok) throw new Refused({ code: "other", message: answer.statusText || `status ${answer.status}` }, answer.status);
  return text;
}

const query = (parameters) => {
  const found = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return found.length ? `?${new URLSearchParams(found)}` : "";
};

export const api = {
  whoAmI: () => call("/v1/auth/whoami"),
  cluster: () => call("/v1/cluster"),
  metrics: async () => parse(await call("/metrics")),
  lease: (resource) => call(`/v1/leases/${inPath(resource)}`),
  leases: (parameters = {}) => call(`/v1/leases${query(parameters)}`),
  history: (resource) => call(`/v1/history/${inPath(resource)}`),
  histories: (parameters = {}) => call(`/v1/history${query(parameters)}`),
  events: (parameters = {}) => call(`/v1/events${query(parameters)}`),
  revoke: (resource, body) => call(`/v1/leases/${inPath(resource)}:revoke`, { method: "POST", body }),
  transfer: (resource, body) => call(`/v1/leases/${inPath(resource)}:transfer`, { method: "POST", body }),
};

/** Every page of a list, one after the other; `each` gets the progress. */
export async function everything(ask, items, parameters = {}, each = () => {}) {
  const found = [];
  for (let after = null; ; ) {
    const page = await ask({ limit: 1000, ...parameters, after });
    found.push(...page[items]);
    each(found);
    if (page.next === null || page.next === undefined) return found;
    after = page.next;
  }
}

/** Words for a failure, the server's own where it had any. */
export function inWords(error) {
  if (error instanceof Refused) return error.hint ? `${error.message} (${error.hint})` : error.message;
  if (error.name === "TimeoutError") return "it does not answer";
  return "it cannot be reached";
}

const KINDS = new Set([
  "opened", "closed", "lapsed", "granted", "ended", "noticed", "queued", "unqueued", "put", "deleted", "barrier", "armed",
  "refused", "paused", "took_office", "changed",
]);

/** What changes, as it changes. Comes back by itself; listeners are notified when it does, because they may have missed something. */
export class Watch {
  #reading = null;
  #listeners = new Set();

  /** Begins to listen, anew if it does already: with whatever is presented now. */
  open() {
    this.#reading?.abort();
    const reading = new AbortController();
    this.#reading = reading;
    this.#keep(reading.signal);
  }

  async #keep(signal) {
    let reader = new EventReader();
    while (!signal.aborted) {
      try {
        await this.#read(reader, signal);
      } catch {
        // A refusal, or a stream that broke: either way it is asked anew.
      }
      if (signal.aborted) return;
      this.#tell({ type: "lost" });
      const { lastId } = reader;
      reader = new EventReader();
      reader.lastId = lastId;
      await new Promise((again) => setTimeout(again, WATCH_AGAIN_MS));
    }
  }

  async #read(reader, signal) {
    const resumed = reader.lastId === null ? {} : { "last-event-id": reader.lastId };
    const headers = { accept: "text/event-stream", ...presented(), ...resumed };
    const answer = await fetch("/v1/watch", { headers, cache: "no-store", credentials: "omit", signal });
    if (!answer.ok) {
      // What is no longer remembered is read anew by whoever listens.
      reader.lastId = null;
      return;
    }
    this.#tell({ type: "open" });
    const text = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await text.read();
      if (done || signal.aborted) return;
      for (const { kind, data } of reader.push(value)) {
        if (KINDS.has(kind)) this.#tell({ type: "event", event: JSON.parse(data) });
      }
    }
  }

  listen(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  #tell(update) {
    for (const listener of [...this.#listeners]) listener(update);
  }
}
