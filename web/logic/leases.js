// The list of leases: rows out of what the server sent, searched, sorted, and the few of them that are in sight.
// No DOM, no clock.

import { mode, scope } from "./words.js";

/** One row per holder; what is searched is put together once, so that typing is quick. */
export function rowsOf(lease, readAt) {
  return lease.holders.map((holder) => ({
    key: `${lease.resource}\u0000${holder.session_number}\u0000${holder.slot ?? ""}`,
    resource: lease.resource,
    name: scope(lease.resource, holder.slot),
    holder: holder.holder,
    mode: mode(holder.mode),
    token: holder.token,
    generation: holder.generation,
    remaining: holder.remaining_ms,
    ttl: holder.ttl_ms,
    held: holder.held_ms,
    notice: holder.notice ?? null,
    lapsed: holder.lapsed ?? false,
    waiters: lease.waiting ?? lease.waiters.length,
    fences: (lease.fences ?? []).length,
    armed: armedCount(lease, holder),
    readAt,
    text: `${scope(lease.resource, holder.slot)}\n${holder.holder}\n${holder.token}\n${holder.notice ?? ""}`.toLowerCase(),
  }));
}

/** How many of a resource's fences have installed this holder's token, or a newer one. */
export function armedCount(lease, holder) {
  return (lease.fences ?? []).filter((fence) =>
    (fence.armed ?? []).some((armed) => (armed.slot ?? null) === (holder.slot ?? null) && armed.token >= holder.token),
  ).length;
}

/** What is left of a row at `now`: the duration that the server sent, counted down since it was read. */
export function leftOf(row, now) {
  return Math.max(row.remaining - (now - row.readAt), 0);
}

/** The rows in which every word occurs somewhere. */
export function search(rows, query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return rows;
  return rows.filter((row) => words.every((word) => row.text.includes(word)));
}

export const COLUMNS = ["name", "holder", "token", "generation", "remaining", "waiters", "fences"];

/** The rows by one column; equal ones by name, so that rows do not jump about. */
export function sort(rows, column, descending, now) {
  const by = {
    name: (row) => row.name,
    holder: (row) => row.holder,
    token: (row) => row.token,
    generation: (row) => row.generation,
    remaining: (row) => leftOf(row, now),
    waiters: (row) => row.waiters,
    fences: (row) => row.armed - row.fences * 1e-3,
  }[column];
  // Worked out once per row: comparing calls it n log n times otherwise.
  const keyed = rows.map((row) => ({ row, key: by(row) }));
  const sign = descending ? -1 : 1;
  keyed.sort((a, b) => {
    if (a.key !== b.key) return (a.key < b.key ? -1 : 1) * sign;
    return a.row.name < b.row.name ? -1 : a.row.name > b.row.name ? 1 : 0;
  });
  return keyed.map(({ row }) => row);
}

/** Which rows of a long list are in sight, with some to spare on either side: [first, end). */
export function visible(count, rowHeight, scrollTop, height, spare = 6) {
  const first = Math.max(Math.floor(scrollTop / rowHeight) - spare, 0);
  const end = Math.min(Math.ceil((scrollTop + height) / rowHeight) + spare, count);
  return { first: Math.min(first, Math.max(count - 1, 0)), end: Math.max(end, 0) };
}

/** Where to scroll so that a row is in sight; where it is already, nowhere. */
export function reveal(index, rowHeight, scrollTop, height) {
  const top = index * rowHeight;
  if (top < scrollTop) return top;
  if (top + rowHeight > scrollTop + height) return top + rowHeight - height;
  return scrollTop;
}

/** Why the waiter at this place in the queue is not granted yet, most binding first. */
export function whyWaits(lease, index) {
  const waiter = lease.waiters[index];
  const reasons = [];
  if (lease.delayed_ms) reasons.push({ kind: "rest", ms: lease.delayed_ms });
  const shared = waiter.mode === "shared";
  const inTheWay = lease.holders.filter((holder) => !(shared && holder.mode === "shared"));
  const slots = typeof waiter.mode === "object" ? waiter.mode.slots : null;
  if (slots === null ? inTheWay.length > 0 : lease.holders.length >= slots) {
    reasons.push({ kind: "held", holders: inTheWay.map((holder) => ({ holder: holder.holder, ms: holder.remaining_ms, notice: holder.notice ?? null })) });
  }
  if (index > 0) {
    const before = lease.waiters.slice(0, index);
    reasons.push({ kind: "line", ahead: index, prior: before.filter((other) => other.priority > waiter.priority).length });
  }
  const others = (waiter.resources ?? []).filter((name) => name !== lease.resource);
  if (others.length > 0) reasons.push({ kind: "others", resources: others });
  if (reasons.length === 0) reasons.push({ kind: "next" });
  return reasons;
}
