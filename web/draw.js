// Pictures out of numbers that others worked out: sparklines, timelines, sums against limits, curves.

import { s } from "./dom.js";
import { colour, ticks } from "./logic/timeline.js";
import { clock, rate, scope, span } from "./logic/words.js";

const HOLDER_COLOURS = 8;

/** The last values of a series as a line; decoration, so it is not read aloud. */
export function sparkline(values, width = 120, height = 28) {
  const picture = s("svg.spark", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return picture;
  const most = Math.max(...known, 1e-9);
  const x = (at) => (at / Math.max(values.length - 1, 1)) * width;
  const y = (value) => height - 2 - (value / most) * (height - 4);
  const points = values.map((value, at) => (value === null ? null : `${x(at).toFixed(1)},${y(value).toFixed(1)}`)).filter(Boolean);
  picture.append(
    s("polygon.area", { points: `${points[0].split(",")[0]},${height} ${points.join(" ")} ${points.at(-1).split(",")[0]},${height}` }),
    s("polyline.line", { points: points.join(" ") }),
  );
  return picture;
}

const LANE = 34;
const AXIS = 22;

function tickText(at, step) {
  const text = clock(at);
  if (step < 1000) return text.slice(3);
  if (step < 60_000) return text.slice(0, 8);
  if (step < 86_400_000) return text.slice(0, 5);
  const day = new Date(at);
  return `${day.getMonth() + 1}/${day.getDate()}`;
}

/** Holders over time, the gaps between them hatched. */
export function timeline({ width, bars, gaps, window, now }) {
  const count = Math.max(...bars.map((bar) => bar.lane + 1), 1);
  const height = count * LANE + AXIS;
  const x = (at) => window.share(at) * width;
  const shown = bars.filter((bar) => (bar.to ?? now) >= window.from && bar.from <= window.to);
  const marks = ticks(window, Math.max(Math.floor(width / 90), 2), -new Date(window.from).getTimezoneOffset() * 60_000);
  const picture = s("svg.timeline", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${shown.length} leases and ${gaps.length} gaps from ${clock(window.from)} to ${clock(window.to)}` });
  picture.append(
    s("defs", {}, s("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, s("rect.hatch-paper", { width: 6, height: 6 }), s("rect.hatch-ink", { width: 2, height: 6 }))),
    ...marks.at.filter((at) => x(at) > 26 && x(at) < width - 26).map((at) => s("g.tick", {}, s("line", { x1: x(at), x2: x(at), y1: 0, y2: height - AXIS + 4 }), s("text", { x: x(at), y: height - 6 }, tickText(at, marks.step)))),
    ...gaps.map((gap) => {
      const left = Math.max(x(gap.from), 0);
      const wide = Math.max(Math.min(x(gap.to), width) - left, 1.5);
      return s("g.gap", {},
        s("rect", { x: left, y: 3, width: wide, height: count * LANE - 6, fill: "url(#hatch)" }),
        wide > 46 ? s("text", { x: left + wide / 2, y: (count * LANE) / 2 + 4 }, span(gap.to - gap.from)) : null,
        s("title", {}, `nobody for ${span(gap.to - gap.from)}${gap.open ? ", and still nobody" : ""}${gap.after?.why ? `, after ${gap.after.why}` : ""}`));
    }),
    ...shown.map((bar) => {
      const left = Math.max(x(bar.from), -2);
      const wide = Math.max(Math.min(x(bar.to ?? now), width + 2) - left, 2);
      const room = Math.floor((wide - 12) / 7);
      const words = [`${bar.token}`, `${bar.token} ${bar.holder}`].filter((text) => text.length <= room).at(-1);
      return s("g.hold", { class: `holder-${colour(bar.holder, HOLDER_COLOURS)}` },
        s("rect", { x: left, y: bar.lane * LANE + 5, width: wide, height: LANE - 10, rx: 3, class: bar.to === null ? "open" : null }),
        words ? s("text", { x: left + 6, y: bar.lane * LANE + LANE / 2 + 4 }, words) : null,
        s("title", {}, `${scope("", bar.slot)} token ${bar.token}, ${bar.holder}, held ${span((bar.to ?? now) - bar.from)}${bar.why ? `, ${bar.why}` : ", holds it now"}`.trim()));
    }),
  );
  return picture;
}

/** The parts of a sum beside what they must stay below. */
export function sum({ parts, right, holds }, width = 640) {
  const total = parts.reduce((all, part) => all + part.ms, 0);
  const most = Math.max(total, right.ms, 1) * 1.02;
  const x = (ms) => (ms / most) * width;
  let from = 0;
  const picture = s("svg.sum", { viewBox: `0 0 ${width} 74`, class: holds ? "holds" : "broken", role: "img", "aria-label": `${parts.map((part) => `${part.name} ${span(part.ms)}`).join(" + ")} = ${span(total)}, against ${right.name} ${span(right.ms)}` });
  parts.forEach((part, at) => {
    const wide = Math.max(x(part.ms), part.ms > 0 ? 1 : 0);
    picture.append(s("g.part", { class: `part-${at}` }, s("rect", { x: x(from), y: 4, width: wide, height: 26 }), wide > part.name.length * 7.5 + 8 ? s("text", { x: x(from) + 5, y: 21 }, part.name) : null, s("title", {}, `${part.name}: ${span(part.ms)}`)));
    from += part.ms;
  });
  picture.append(
    s("rect.right", { x: 0, y: 40, width: x(right.ms), height: 26 }),
    s("text.right-text", { x: 5, y: 57 }, `${right.name} ${span(right.ms)}`),
    s("line.limit", { x1: x(right.ms), x2: x(right.ms), y1: 0, y2: 70 }),
  );
  return picture;
}

/** Lines over a logarithmic TTL: what it costs to wait longer, and what it costs to wait shorter. */
export function tradeOff(points, marked, { width = 640, height = 250 } = {}) {
  const [left, bottom, top, right] = [26, 30, 18, 26];
  const lo = Math.log(points[0].ttl);
  const hi = Math.log(points.at(-1).ttl);
  const x = (value) => left + ((Math.log(value) - lo) / (hi - lo)) * (width - left - right);
  const scale = (values) => {
    const logs = values.map((value) => Math.log10(Math.max(value, 1e-12)));
    const [least, most] = [Math.min(...logs), Math.max(...logs)];
    return (value) => top + (1 - (Math.log10(Math.max(value, 1e-12)) - least) / Math.max(most - least, 1e-9)) * (height - top - bottom);
  };
  const curves = [
    { name: "gap", y: scale(points.map((point) => point.gap)), of: (point) => point.gap, text: (ms) => span(ms) },
    { name: "load", y: scale(points.map((point) => point.load)), of: (point) => point.load, text: (load) => `${rate(load)} a second` },
  ];
  const picture = s("svg.curve", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "A longer TTL means a longer gap after a crash and fewer renewals" });
  const refused = points.filter((point) => !point.holds);
  if (refused.length > 0) {
    const end = Math.max(...refused.map((point) => point.ttl));
    picture.append(s("rect.refused", { x: left, y: top, width: Math.max(x(end) - left, 0), height: height - top - bottom }));
  }
  for (const at of [500, 1000, 2000, 5000, 10_000, 30_000, 60_000]) {
    if (at < points[0].ttl || at > points.at(-1).ttl) continue;
    picture.append(s("g.tick", {}, s("line", { x1: x(at), x2: x(at), y1: top, y2: height - bottom }), s("text", { x: x(at), y: height - 10 }, span(at).replace(".0", ""))));
  }
  for (const curve of curves) {
    picture.append(s("polyline.line", { class: curve.name, points: points.map((point) => `${x(point.ttl).toFixed(1)},${curve.y(curve.of(point)).toFixed(1)}`).join(" ") }));
  }
  const here = Math.min(Math.max(marked.ttl, points[0].ttl), points.at(-1).ttl);
  picture.append(s("line.here", { x1: x(here), x2: x(here), y1: top, y2: height - bottom }));
  // Each curve has a scale of its own, so its value is written where it is read: at the marked TTL.
  const end = x(here) > width / 2;
  for (const curve of curves) {
    const y = Math.min(Math.max(curve.y(curve.of(marked)), top), height - bottom);
    picture.append(s("circle.mark", { class: curve.name, cx: x(here), cy: y, r: 3.5 }), s("text.mark-text", { class: `${curve.name} ${end ? "end" : "start"}`, x: x(here) + (end ? -8 : 8), y: y - 6 }, curve.text(curve.of(marked))));
  }
  return picture;
}
