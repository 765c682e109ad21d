// Numbers and times as people read them. No DOM, no clock: whatever is now is an argument.

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** A length of time in the two units that matter: "4.2 s", "3 min 5 s", "2 h 10 min". */
export function span(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
  const left = Math.max(ms, 0);
  if (left === 0) return "0 s";
  if (left < 1) return `${Math.round(left * 1000)} µs`;
  if (left < SECOND) return `${left < 10 ? trim(left, 1) : Math.round(left)} ms`;
  // Whatever would round to a whole minute is one.
  if (left < MINUTE - 50) return `${(left / SECOND).toFixed(1)} s`;
  const whole = Math.round(left / SECOND) * SECOND;
  if (whole < HOUR) return two(whole, MINUTE, "min", SECOND, "s");
  if (whole < DAY) return two(whole, HOUR, "h", MINUTE, "min");
  return two(whole, DAY, "d", HOUR, "h");
}

function two(ms, large, largeName, small, smallName) {
  const rest = Math.floor((ms % large) / small);
  return `${Math.floor(ms / large)} ${largeName}${rest ? ` ${rest} ${smallName}` : ""}`;
}

function trim(value, digits) {
  return String(Number(value.toFixed(digits)));
}

/** A count, its thousands set apart. */
export function count(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return Math.round(value).toString().replace(/\B(?=(\d{3})+(?!\d))/g, " ");
}

/** How often something happens in a second. */
export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined || Number.isNaN(perSecond)) return "–";
  if (perSecond >= 100) return count(perSecond);
  return trim(perSecond, perSecond >= 10 ? 1 : 2);
}

/** How a resource is held. */
export function mode(value) {
  return typeof value === "string" ? value : `1 of ${value.slots} slots`;
}

/** The name of what a lease covers: the resource, or one slot of it. */
export function scope(resource, slot) {
  return slot === null || slot === undefined ? resource : `${resource}#${slot}`;
}

const pad = (number, width = 2) => String(number).padStart(width, "0");

/** The time of day of a calendar time, in the reader's own zone: "14:03:09.120". */
export function clock(ms) {
  const at = new Date(ms);
  return `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}.${pad(at.getMilliseconds(), 3)}`;
}

/** Day and time, in the reader's own zone: "2026-03-04 14:03:09". */
export function calendar(ms) {
  const at = new Date(ms);
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${clock(ms).slice(0, 8)}`;
}

/** The same as short as it stays distinguishable: the time of today, else the day with it and without seconds. */
export function when(ms, now) {
  const text = calendar(ms);
  return text.slice(0, 10) === calendar(now).slice(0, 10) ? text.slice(11) : text.slice(0, 16);
}

/** What an input of type datetime-local holds. */
export function forInput(ms) {
  return calendar(ms).replace(" ", "T");
}

const WHY = {
  released: "the holder gave it back",
  expired: "no renewal came in time",
  revoked: "an administrator ended it",
  transferred: "the holder handed it over",
  held_too_long: "the maximum hold was reached",
  taken_over: "it had lapsed and a contender came",
  died: "a supervisor saw the holder dead",
};

/** Why a lease ended, as a sentence's end. */
export function why(reason) {
  return WHY[reason] ?? reason;
}

/** A path segment for a resource's name: its slashes stay, its colons do not look like verbs. */
export function inPath(resource) {
  return resource.split("/").map(encodeURIComponent).join("/").replace(/:/g, "%3A");
}

/** The singular or the plural. */
export function plural(number, one, many) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** Where a history was cut, and by which limit. */
export function cut({ leases, limit = null, max = null, token = null }) {
  const what = `${plural(leases, "older lease was", "older leases were")} dropped`;
  const by = limit === null ? "" : `, limit ${limit} = ${count(max)}`;
  const rest = token === null ? "" : `: every lease above token ${count(token)} is listed`;
  return `${what}${by}${rest}.`;
}
