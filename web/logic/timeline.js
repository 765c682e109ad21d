// Who held a resource when: bars, the gaps between them, and where they go on a picture that can be zoomed.
// No DOM, no clock: `now` is an argument, in milliseconds since 1970 as the server's calendar has it.

/** Past and present leases of a resource as bars, the oldest first. A present one has no end yet. How long it
 *  has been held is cluster time, in which stalls do not count; so it begins where the server's calendar says, or the event of its
 *  grant (`granted`, by token), and only for want of both that long ago. */
export function bars(history, now, granted = new Map()) {
  const past = history.transitions.map((lease) => ({
    token: lease.token,
    generation: lease.generation,
    holder: lease.holder,
    slot: lease.slot ?? null,
    mode: lease.mode,
    from: Date.parse(lease.from),
    to: Date.parse(lease.to),
    why: lease.why,
    reason: lease.reason ?? null,
    held: lease.held_ms,
  }));
  const present = history.holders.map((holder) => ({
    token: holder.token,
    generation: holder.generation,
    holder: holder.holder,
    slot: holder.slot ?? null,
    mode: holder.mode,
    from: holder.from ? Date.parse(holder.from) : (granted.get(holder.token) ?? now - holder.held_ms),
    to: null,
    why: null,
    reason: null,
    held: holder.held_ms,
  }));
  return [...past, ...present].sort((a, b) => a.from - b.from || a.token - b.token);
}

/** When nobody held the resource, within a window: from the end of one lease to the beginning of the next. What follows
 *  the last lease is a gap that is still open. What came before the first is not known, so it is none. */
export function gaps(bars, from, to) {
  const found = [];
  let heldUntil = null;
  let last = null;
  for (const bar of bars) {
    if (heldUntil !== null && bar.from > heldUntil) found.push({ from: heldUntil, to: bar.from, after: last, before: bar, open: false });
    const end = bar.to ?? Infinity;
    if (heldUntil === null || end > heldUntil) {
      heldUntil = end;
      last = bar;
    }
  }
  if (heldUntil !== null && heldUntil < to) found.push({ from: heldUntil, to, after: last, before: null, open: true });
  return found
    .filter((gap) => gap.to > from && gap.from < to)
    .map((gap) => ({ ...gap, from: Math.max(gap.from, from), to: Math.min(gap.to, to) }));
}

/** Count, longest and total of gaps, and of those that no holder asked for. */
export function summary(gaps) {
  const length = (gap) => gap.to - gap.from;
  const total = gaps.reduce((sum, gap) => sum + length(gap), 0);
  const longest = gaps.reduce((most, gap) => Math.max(most, length(gap)), 0);
  const lost = gaps.filter((gap) => ["expired", "died", "taken_over"].includes(gap.after?.why));
  return { count: gaps.length, longest, total, unplanned: lost.length };
}

/** Bars that overlap in time go into lanes of their own: the first lane that is free. Semaphores have a lane per slot. */
export function lanes(bars) {
  const ends = [];
  return bars.map((bar) => {
    const end = bar.to ?? Infinity;
    let lane = bar.slot ?? ends.findIndex((until) => until <= bar.from);
    if (lane < 0) lane = ends.length;
    ends[lane] = Math.max(ends[lane] ?? -Infinity, end);
    return { ...bar, lane };
  });
}

/** A window of time on a picture of some width. */
export class Window {
  constructor(from, to) {
    this.from = from;
    this.to = Math.max(to, from + 1);
  }

  /** Where a moment is, as a share of the width. */
  share(at) {
    return (at - this.from) / (this.to - this.from);
  }

  /** The moment at a share of the width. */
  at(share) {
    return this.from + share * (this.to - this.from);
  }

  /** Closer (factor below 1) or farther, around a share of the width that stays where it is; never beyond the bounds. */
  zoom(factor, share, bounds, least = 10) {
    const length = Math.min(Math.max((this.to - this.from) * factor, least), bounds.to - bounds.from);
    const pivot = this.at(share);
    return new Window(pivot - share * length, pivot + (1 - share) * length).within(bounds);
  }

  /** Earlier (below 0) or later, by a share of what is shown. */
  pan(share, bounds) {
    const by = share * (this.to - this.from);
    return new Window(this.from + by, this.to + by).within(bounds);
  }

  within(bounds) {
    const length = Math.min(this.to - this.from, bounds.to - bounds.from);
    const from = Math.min(Math.max(this.from, bounds.from), bounds.to - length);
    return new Window(from, from + length);
  }
}

const STEPS = [
  1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 900_000,
  1_800_000, 3_600_000, 7_200_000, 10_800_000, 21_600_000, 43_200_000, 86_400_000, 172_800_000, 604_800_000,
];

/** Round moments to write below a picture, at most about `most` of them. `offset` is that of the reader's zone. */
export function ticks(window, most, offset = 0) {
  const length = window.to - window.from;
  const step = STEPS.find((step) => length / step <= most) ?? STEPS.at(-1);
  const found = [];
  for (let at = Math.ceil((window.from + offset) / step) * step - offset; at <= window.to; at += step) found.push(at);
  return { step, at: found };
}

/** One of `many` colours for a holder: the same whenever it holds. */
export function colour(holder, many) {
  let hash = 2166136261;
  for (const sign of holder) hash = Math.imul(hash ^ sign.codePointAt(0), 16777619) >>> 0;
  return hash % many;
}
