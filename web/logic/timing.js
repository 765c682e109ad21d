// The five numbers of a lease and what must be true of them: the arithmetic of crates/core/src/timing.rs, in milliseconds.
// No DOM. The server checks with its own; this is for looking.

const SIGMA_MIN = 1;

/** The usual numbers for a TTL. */
export function forTtl(ttl) {
  return { ttl, renew: ttl / 3, rho: 500, net: 50, sigma: Math.max(ttl / 50, 100) };
}

/** One data centre, an ordinary scheduler, no operation to speak of, the server's usual limits. */
export const BOUNDS = { pause: 100, retry: 50, reconnect: 100, max_op: 0, ttl_min: 500, ttl_max: 3_600_000 };

/** What two clocks may differ by after a TTL. */
export function drift({ ttl, rho }) {
  return (ttl * rho) / 1e6;
}

/** How long after sending a renewal the holder may act on its answer. */
export function usable(numbers) {
  return Math.max(numbers.ttl - drift(numbers) - numbers.sigma, 0);
}

export function detect({ renew }) {
  return renew / 4;
}

/** Every inequality: its name, its formula, the parts of its left side, its right side, and whether it holds. */
export function inequalities(numbers, bounds = BOUNDS) {
  const { ttl, renew, net, sigma } = numbers;
  const left = usable(numbers);
  const part = (name, ms) => ({ name, ms });
  const sum = (parts) => parts.reduce((total, { ms }) => total + ms, 0);
  const safety = [part("σ", sigma), part("ρ·TTL", drift(numbers))];
  const available = [part("R", renew), part("detect", detect(numbers)), part("reconnect", bounds.reconnect), part("retry", bounds.retry)];
  const work = [part("R", renew), part("net", net), part("max op", bounds.max_op)];
  return [
    {
      id: "safety", name: "Safety", formula: "σ + ρ·TTL < TTL, and σ covers a pause", parts: safety, right: part("TTL", ttl),
      holds: sum(safety) < ttl && sigma >= Math.max(bounds.pause, SIGMA_MIN),
      broken: sum(safety) >= ttl ? "Nothing of the TTL is usable: lengthen the TTL or lower σ." : `σ is below the scheduling bound of ${Math.max(bounds.pause, SIGMA_MIN)} ms: raise σ, or lower the bound if this process never stands still that long.`,
    },
    {
      id: "availability", name: "Availability", formula: "R + detect + reconnect + retry < TTL − σ − ρ·TTL", parts: available, right: part("usable", left),
      holds: renew > 0 && sum(available) < left,
      broken: renew > 0 ? "One lost renewal would end the lease: renew more often or lengthen the TTL." : "R is zero: renewals need a length of time between them.",
    },
    {
      id: "work", name: "Work", formula: "R + net + longest operation ≤ TTL − σ − ρ·TTL", parts: work, right: part("usable", left),
      holds: sum(work) <= left,
      broken: "A healthy lease could not cover the longest operation: lengthen the TTL, renew more often, or split the operation.",
    },
    {
      id: "floor", name: "Floor", formula: "2·(net + pause) ≤ TTL, within the server's limits", parts: [part("2·net", 2 * net), part("2·pause", 2 * bounds.pause)], right: part("TTL", ttl),
      holds: ttl >= 2 * (net + bounds.pause) && ttl >= bounds.ttl_min && ttl <= bounds.ttl_max,
      broken: ttl < bounds.ttl_min || ttl > bounds.ttl_max ? `The TTL is outside the server's limits, ${bounds.ttl_min} ms to ${bounds.ttl_max} ms.` : "The TTL is below its floor: lengthen it.",
    },
  ];
}

/** The longest time that a resource stands still after its holder crashed right after sending a renewal. */
export function crashGapWorst({ net, ttl }, commit) {
  return net + ttl + 3 * commit;
}

/** The gap of a planned change of holder. */
export function plannedGap({ net }, commit) {
  return commit + net;
}

export function renewalsPerMinute({ renew }) {
  return Math.round(60_000 / renew);
}

/** How many multiples of `every` lie before `end`. */
function attempts(end, every) {
  return every > 0 ? Math.max(Math.ceil(end / every) - 1, 0) : 0;
}

/** How many renewals fit before the deadline if a lost one were only made up for by the next. */
export function attemptsWithoutRetries(numbers) {
  return attempts(usable(numbers), numbers.renew);
}

/** How many fit when an unanswered one is repeated after R/4. */
export function attemptsWithRetries(numbers) {
  return 1 + attempts(Math.max(usable(numbers) - numbers.renew, 0), detect(numbers));
}

/** The trade-off over a range of TTLs, at the same share of R and with the usual sigma. */
export function curve(numbers, { commit = 5, holders = 1000, from = 500, to = 60_000, points = 60 } = {}) {
  const share = numbers.renew / numbers.ttl;
  const found = [];
  for (let at = 0; at < points; at += 1) {
    const ttl = from * (to / from) ** (at / (points - 1));
    const one = { ...numbers, ttl, renew: ttl * share, sigma: Math.max(ttl / 50, 100) };
    found.push({
      ttl,
      gap: crashGapWorst(one, commit),
      load: (holders * 1000) / one.renew,
      holds: inequalities(one).every((inequality) => inequality.holds),
    });
  }
  return found;
}
