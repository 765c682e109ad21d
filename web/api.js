// Asking the node that served this page, and hearing from it. Reads the public interface and nothing else.

import { parse } from "./logic/metrics.js";
import { inPath } from "./logic/words.js";

const ANSWER_WITHIN_MS = 8_000;

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

const KINDS = [
  "opened", "closed", "lapsed", "granted", "ended", "noticed", "queued", "unqueued", "put", "deleted", "barrier", "armed",
  "refused", "paused", "took_office", "changed",
];

/** What changes, as it changes. Comes back by itself; listeners are notified when it does, because they may have missed something. */
export class Watch {
  #source = null;
  #again = 0;
  #listeners = new Set();

  open() {
    clearTimeout(this.#again);
    this.#source?.close();
    const source = new EventSource("/v1/watch");
    this.#source = source;
    for (const kind of KINDS) {
      source.addEventListener(kind, (message) => this.#tell({ type: "event", event: JSON.parse(message.data) }));
    }
    source.addEventListener("open", () => this.#tell({ type: "open" }));
    source.addEventListener("error", () => {
      this.#tell({ type: "lost" });
      // Where the browser itself gives up (a refusal instead of a stream), ask anew.
      if (source.readyState === EventSource.CLOSED) {
        clearTimeout(this.#again);
        this.#again = setTimeout(() => this.open(), 1000);
      }
    });
  }

  listen(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  #tell(update) {
    for (const listener of [...this.#listeners]) listener(update);
  }
}
