// The five numbers: whether they fit together, drawn, and what a longer or shorter TTL would cost.

import { h, section, setText } from "../dom.js";
import { sum, tradeOff } from "../draw.js";
import * as timing from "../logic/timing.js";
import { count, span } from "../logic/words.js";

const NUMBERS = [
  { id: "ttl", name: "TTL", unit: "ms", min: 100, max: 3_600_000, note: "how long a session lives without a renewal" },
  { id: "renew", name: "R", unit: "ms", min: 0, max: 3_600_000, note: "how long after a renewal the next one is sent" },
  { id: "rho", name: "ρ", unit: "ppm", min: 0, max: 500_000, note: "how much two clocks' rates may differ; their offset does not matter" },
  { id: "net", name: "net", unit: "ms", min: 0, max: 60_000, note: "the bound on one exchange with the store; no safety rule needs it" },
  { id: "sigma", name: "σ", unit: "ms", min: 0, max: 600_000, note: "the slack between checking a deadline and acting on it" },
];
const BOUNDS = [
  { id: "pause", name: "pause", unit: "ms", note: "the longest that the process stands still between checking and acting" },
  { id: "retry", name: "retry", unit: "ms", note: "one more attempt, once there is a connection" },
  { id: "reconnect", name: "reconnect", unit: "ms", note: "a new connection to another endpoint" },
  { id: "max_op", name: "longest operation", unit: "ms", note: "what is done under one permit" },
];
const WORLD = [
  { id: "commit", name: "commit", unit: "ms", start: 5, note: "how long the store takes to agree" },
  { id: "holders", name: "sessions", unit: "", start: 1000, note: "that renew" },
];

export function mount(root, _, __, parameters) {
  const numbers = { ...timing.forTtl(10_000) };
  const bounds = { ...timing.BOUNDS };
  const world = Object.fromEntries(WORLD.map(({ id, start }) => [id, start]));
  for (const [target, fields] of [[numbers, NUMBERS], [bounds, BOUNDS], [world, WORLD]]) {
    for (const { id } of fields) {
      const given = Number(parameters.get(id));
      if (parameters.has(id) && Number.isFinite(given) && given >= 0) target[id] = given;
    }
  }
  const inputs = new Map();
  const field = (target) => ({ id, name, unit, min = 0, max, note }) => {
    const input = h("input", { type: "number", id: `n-${id}`, min, max, step: "any", inputmode: "decimal", value: round(target[id]), "aria-describedby": `d-${id}`, oninput: () => set(target, id, Number(input.value)) });
    inputs.set(id, input);
    return h("p.field", {}, h("label", { for: `n-${id}` }, name), h("span.unit-box", {}, input, h("span.unit", {}, unit)), h("span.hint", { id: `d-${id}` }, note));
  };
  const verdict = h("p.health", { role: "status" });
  const sums = h("div.sums");
  const figures = h("dl.figures");
  const curve = h("div.picture");
  const legend = h("ul.legend");
  root.append(
    h("h1", {}, "Tuner"),
    h("p.quiet", {}, "A lease is safe when its holder stops before the store ends it, and useful when one lost renewal does not cost it. Durations are counted from the sending of a renewal, so neither network delay nor clock offset is in the safety rule."),
    verdict,
    h("div.columns.tuner-columns", {},
      section("The five numbers", h("div.fields", {}, ...NUMBERS.map(field(numbers))), h("div.actions", {}, h("button", { type: "button", onclick: usual }, "The usual ones for this TTL")), h("h3", {}, "What the world is bounded by"), h("div.fields", {}, ...BOUNDS.map(field(bounds)))),
      section("What must hold", sums)),
    section("What follows", figures),
    section("The trade-off", h("div.fields.row-fields", {}, ...WORLD.map(field(world))), curve, legend),
  );

  function set(target, id, value) {
    if (!Number.isFinite(value) || value < 0) return;
    target[id] = value;
    show();
    const words = new URLSearchParams();
    for (const part of [numbers, bounds, world]) for (const [name, value] of Object.entries(part)) if (inputs.has(name)) words.set(name, round(value));
    history.replaceState(null, "", `#/tuner?${words}`);
  }

  function usual() {
    Object.assign(numbers, timing.forTtl(numbers.ttl), { net: numbers.net });
    for (const { id } of NUMBERS) inputs.get(id).value = round(numbers[id]);
    show();
  }

  function show() {
    const all = timing.inequalities(numbers, bounds);
    const broken = all.filter((one) => !one.holds);
    verdict.className = broken.length ? "health bad-text" : "health good-text";
    setText(verdict, broken.length ? `Refused: ${broken.map((one) => one.name.toLowerCase()).join(", ")}.` : `They fit: a holder may act for ${span(timing.usable(numbers))} after sending a renewal, ${((timing.usable(numbers) / numbers.ttl) * 100).toFixed(1)} % of the TTL.`);
    sums.replaceChildren(...all.map((one) =>
      h("div.inequality", {},
        h("h3", {}, h("span", { class: one.holds ? "good-text" : "bad-text", "aria-hidden": "true" }, one.holds ? "✓ " : "✗ "), one.name, h("span.unseen", {}, one.holds ? " holds" : " does not hold")),
        h("p.formula", {}, one.formula),
        sum(one, wide(sums)),
        h("p.quiet", {}, `${one.parts.map((part) => `${part.name} ${span(part.ms)}`).join(" + ")} = ${span(one.parts.reduce((total, part) => total + part.ms, 0))}, against ${span(one.right.ms)}`),
        one.holds ? null : h("p.bad-text", {}, one.broken))));
    const figure = (name, text) => h("div", {}, h("dt", {}, name), h("dd", {}, text));
    figures.replaceChildren(
      figure("Usable", span(timing.usable(numbers))),
      figure("Renewals a minute", count(timing.renewalsPerMinute(numbers))),
      figure("Attempts before the deadline", `${timing.attemptsWithRetries(numbers)} (${timing.attemptsWithoutRetries(numbers)} without retries)`),
      figure("Worst gap after a crash", span(timing.crashGapWorst(numbers, world.commit))),
      figure("Gap of a handover", span(timing.plannedGap(numbers, world.commit))),
      figure(`Renewals of ${count(world.holders)} sessions`, `${count((world.holders * 1000) / Math.max(numbers.renew, 1))} a second`));
    const marked = { ttl: numbers.ttl, gap: timing.crashGapWorst(numbers, world.commit), load: (world.holders * 1000) / Math.max(numbers.renew, 1) };
    curve.replaceChildren(tradeOff(timing.curve(numbers, { commit: world.commit, holders: world.holders }), marked, { width: wide(curve) }));
    legend.replaceChildren(
      h("li.gap", {}, "worst gap after a crash"), h("li.load", {}, "renewals a second"), h("li.here", {}, "your TTL"), h("li.refused", {}, "does not fit together"));
  }
  show();
  window.addEventListener("resize", show);
  return { unmount: () => window.removeEventListener("resize", show) };
}

/** Pictures are drawn as wide as they are shown, so that their letters are as large as the others. */
function wide(place) {
  return Math.min(Math.max(place.clientWidth, 280), 640);
}

function round(value) {
  return String(Number(value.toFixed(3)));
}
