// Prometheus' text format, and what can be computed from two readings of it. No DOM, no clock.

/** Reads a page: a map from a sample's name to its samples, each with labels and value. */
export function parse(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    if (line === "" || line.startsWith("#")) continue;
    const sample = parseLine(line);
    if (!sample) continue;
    const samples = found.get(sample.name);
    if (samples) samples.push(sample);
    else found.set(sample.name, [sample]);
  }
  return found;
}

function parseLine(line) {
  const match = /^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?\s+(\S+)$/.exec(line);
  if (!match) return null;
  const labels = {};
  const label = /([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"/g;
  for (let part; (part = label.exec(match[2] ?? "")); ) {
    labels[part[1]] = part[2].replace(/\\(.)/g, (_, sign) => (sign === "n" ? "\n" : sign));
  }
  const value = match[3] === "+Inf" ? Infinity : Number(match[3]);
  return { name: match[1], labels, value };
}

/** The value of a sample: the sum over all that have these labels. */
export function value(page, name, labels = {}) {
  const samples = page?.get(name);
  if (!samples) return null;
  const wanted = Object.entries(labels);
  const fits = samples.filter((sample) => wanted.every(([key, text]) => sample.labels[key] === text));
  return fits.length === 0 ? null : fits.reduce((sum, sample) => sum + sample.value, 0);
}

/** How much a counter rose per second between two readings; a counter that fell began anew. */
export function perSecond(before, after, seconds) {
  if (before === null || after === null || !(seconds > 0)) return null;
  return (after >= before ? after - before : after) / seconds;
}

/** The value that a share of all observations of a histogram stay below, by its buckets; null if there are none. */
export function quantile(page, name, share, labels = {}) {
  const wanted = Object.entries(labels);
  const buckets = (page?.get(`${name}_bucket`) ?? [])
    .filter((sample) => wanted.every(([key, text]) => sample.labels[key] === text))
    .map((sample) => ({ bound: sample.labels.le === "+Inf" ? Infinity : Number(sample.labels.le), count: sample.value }))
    .sort((a, b) => a.bound - b.bound);
  const total = buckets.at(-1)?.count ?? 0;
  if (total === 0) return null;
  const rank = share * total;
  let below = { bound: 0, count: 0 };
  for (const bucket of buckets) {
    if (bucket.count >= rank) {
      if (bucket.bound === Infinity) return below.bound;
      const within = bucket.count - below.count;
      const part = within === 0 ? 0 : (rank - below.count) / within;
      return below.bound + (bucket.bound - below.bound) * part;
    }
    below = bucket;
  }
  return below.bound;
}

/** The last readings of some numbers, for sparklines: at most `max`, the newest last. */
export class Series {
  constructor(max = 60) {
    this.max = max;
    this.values = [];
  }

  push(value) {
    this.values.push(value);
    if (this.values.length > this.max) this.values.shift();
  }

  get last() {
    return this.values.at(-1) ?? null;
  }
}
