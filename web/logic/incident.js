// What happened in a window of time, in order, as lines. No DOM, no network: what is asked for is a function given.

import { scope, span, why } from "./words.js";

export const KINDS = {
  granted: "grants",
  ended: "ends",
  noticed: "notices",
  queued: "waits",
  refused: "refused writes",
  office: "leaders",
  paused: "pauses",
  session: "sessions",
  fence: "fences",
  other: "other",
};

/** An event as a line: when, what kind, about what, in words. */
export function line(event) {
  const at = Date.parse(event.at);
  const base = { at, revision: event.revision, event };
  const name = event.resource === undefined ? null : scope(event.resource, event.slot);
  switch (event.kind) {
    case "granted":
      return { ...base, group: "granted", about: event.resource, text: `${name} granted to ${event.holder}, token ${event.token}, generation ${event.generation}${event.waited_ms ? `, after ${span(event.waited_ms)} in the queue` : ""}` };
    case "ended":
      return { ...base, group: "ended", about: event.resource, grave: ["expired", "revoked", "taken_over", "died", "held_too_long"].includes(event.why), text: `${name} ended for ${event.holder}, token ${event.token}: ${event.why} (${why(event.why)}) after ${span(event.held_ms)}${event.late_us >= 1000 ? `, ${span(event.late_us / 1000)} late` : ""}${event.reason ? ` “${event.reason}”` : ""}` };
    case "noticed":
      return { ...base, group: "noticed", about: event.resource, grave: true, text: `${event.resource} under notice, token ${event.token}: ${event.why}, ${span(event.remaining_ms)} left${event.reason ? ` “${event.reason}”` : ""}` };
    case "queued":
      return { ...base, group: "queued", about: event.resource, text: `${event.holder} waits for ${event.resource}` };
    case "unqueued":
      return { ...base, group: "queued", about: event.resource, text: `${event.holder} no longer waits for ${event.resource}: ${event.why === "released" ? "cancelled" : event.why}` };
    case "refused":
      return { ...base, group: "refused", about: event.scope, grave: true, text: `${event.fence} refused ${event.count} stale ${event.count === 1 ? "write" : "writes"} to ${event.scope}: token ${event.presented}, ${event.seen} was seen` };
    case "took_office":
      return { ...base, group: "office", about: null, grave: true, text: `node ${event.node} took office in term ${event.term}` };
    case "paused":
      return { ...base, group: "paused", about: null, grave: true, text: `${event.holder} (session ${event.session_number}) was paused for ${span(event.paused_ms)}` };
    case "opened":
      return { ...base, group: "session", about: null, text: `session ${event.session_number} opened by ${event.holder}` };
    case "closed":
      return { ...base, group: "session", about: null, grave: event.why === "expired" || event.why === "died", text: `session ${event.session_number} of ${event.holder} closed: ${event.why}` };
    case "lapsed":
      return { ...base, group: "session", about: null, grave: true, text: `session ${event.session_number} of ${event.holder} lapsed` };
    case "armed":
      return { ...base, group: "fence", about: event.scope, text: `${event.fence} installed token ${event.token} for ${event.scope}` };
    case "barrier":
      return { ...base, group: "fence", about: event.resource, text: `token ${event.token} issued without a holder on ${event.resource}` };
    case "changed":
      return { ...base, group: "other", about: event.what, text: `${event.what}: ${event.how}` };
    case "put":
      return { ...base, group: "other", about: event.key ?? null, text: `register ${event.key ?? event.key_base64} written, version ${event.version}` };
    case "deleted":
      return { ...base, group: "other", about: event.key ?? null, text: `register ${event.key ?? event.key_base64} deleted` };
    default:
      return { ...base, group: "other", about: null, text: event.kind };
  }
}

/** What histories know that the event log has forgotten: grants and ends before `until`, made into events again. */
export function fromHistories(histories, until) {
  const found = [];
  for (const { resource, transitions } of histories) {
    for (const past of transitions) {
      const { token, generation, holder, session_number, mode, slot = null } = past;
      if (Date.parse(past.from) < until) {
        found.push({ kind: "granted", at: past.from, revision: null, resource, session_number, holder, mode, slot, token, generation, waited_ms: 0, number: null });
      }
      if (Date.parse(past.to) < until) {
        found.push({ kind: "ended", at: past.to, revision: null, resource, session_number, holder, slot, token, why: past.why, held_ms: past.held_ms, late_us: 0, reason: past.reason ?? null });
      }
    }
  }
  return found;
}

/** The lines within a window, in order; where revisions are known they decide, because calendars of two leaders may disagree.
 *  A prefix leaves out other resources, not what concerns all of them: leaders, pauses, sessions. */
export function inWindow(events, from, to, prefix = "") {
  return events
    .map((event, place) => ({ ...line(event), place }))
    .filter((one) => one.at >= from && one.at <= to && (one.about === null || one.about.startsWith(prefix)))
    .sort((a, b) => {
      if (a.revision !== null && b.revision !== null) return a.revision - b.revision || a.place - b.place;
      return a.at - b.at || (a.event.token ?? 0) - (b.event.token ?? 0);
    });
}

/** The first revision in [low, high] whose event is not before `from`; `ask(revision)` gives the calendar time of the first
 *  event at or after a revision, or null if there is none. Times of two leaders may disagree a little, so begin a bit earlier. */
export async function firstRevision(low, high, from, ask) {
  let [least, most] = [low, high + 1];
  while (least < most) {
    const middle = Math.floor((least + most) / 2);
    const at = await ask(middle);
    if (at === null || at >= from) most = middle;
    else least = middle + 1;
  }
  return least;
}

/** How many there are of each kind. */
export function counts(lines) {
  const found = Object.fromEntries(Object.keys(KINDS).map((kind) => [kind, 0]));
  for (const one of lines) found[one.group] += one.group === "refused" ? one.event.count : 1;
  return found;
}

/** For a ticket: plain text, times in UTC. */
export function asText(lines, { from, to, cluster }) {
  const head = [
    `Tenure, cluster ${cluster ?? "unknown"}`,
    `${new Date(from).toISOString()} to ${new Date(to).toISOString()}, ${lines.length} events`,
    "",
  ];
  const body = lines.map((one) => `${new Date(one.at).toISOString()}  ${String(one.revision ?? "-").padStart(8)}  ${one.text}`);
  return [...head, ...body, ""].join("\n");
}

/** For programs: the events as the server sent them. */
export function asJson(lines, { from, to, cluster }) {
  return JSON.stringify({ cluster: cluster ?? null, from: new Date(from).toISOString(), to: new Date(to).toISOString(), events: lines.map((one) => one.event) }, null, 2);
}
