// What happened between two moments, in order: for the one who has to explain it.

import { api, everything, inWords } from "../api.js";
import { announce, h, save, section, setText } from "../dom.js";
import { asJson, asText, counts, firstRevision, fromHistories, inWindow, KINDS } from "../logic/incident.js";
import { visible } from "../logic/leases.js";
import { calendar, clock, count, forInput, plural } from "../logic/words.js";

const PRESETS = [["last 5 min", 300_000], ["last hour", 3_600_000], ["last 24 h", 86_400_000], ["all that is known", null]];
const MARGIN_MS = 5_000;
const ROW = 26;
/** On a phone a line of words takes two lines of text. */
const ROW_NARROW = 42;

export function mount(root, context, _, parameters) {
  const now = Date.now() + (context.skew ?? 0);
  const state = {
    from: Number(parameters.get("from")) || now - 3_600_000,
    to: Number(parameters.get("to")) || null,
    prefix: parameters.get("prefix") ?? "",
    hidden: new Set(["session", "other"]),
    lines: [],
    shown: [],
  };
  const from = h("input", { type: "datetime-local", id: "from", step: "1", value: forInput(state.from) });
  const to = h("input", { type: "datetime-local", id: "to", step: "1", value: state.to ? forInput(state.to) : "" });
  const prefix = h("input", { type: "search", id: "prefix", placeholder: "every resource", value: state.prefix, autocomplete: "off" });
  const kinds = h("div.kinds", { role: "group", "aria-label": "Kinds of events" });
  const found = h("p.found", { role: "status" });
  const space = h("ol.events", { "aria-label": "What happened, in order" });
  const list = h("div.viewport.story", { tabindex: "0", role: "region", "aria-label": "Events", onscroll: () => draw() }, space);
  const form = h("form.tools", { onsubmit: (event) => { event.preventDefault(); pick(); } },
    h("span.field", {}, h("label", { for: "from" }, "From"), from),
    h("span.field", {}, h("label", { for: "to" }, "Until (empty: now)"), to),
    h("span.field", {}, h("label", { for: "prefix" }, "Resources beginning with"), prefix),
    h("button.primary", { type: "submit" }, "Show"),
    h("span.presets", { role: "group", "aria-label": "Windows" }, ...PRESETS.map(([name, length]) => h("button", { type: "button", onclick: () => preset(length) }, name))));
  root.append(
    h("h1", {}, "Incident"),
    h("p.quiet", {}, "Grants, ends, notices, handovers, leader changes and refused stale writes, in the order in which the cluster agreed on them. Times are the leaders' calendars in your zone; the order is the log's."),
    form,
    kinds,
    section("Story", h("div.tools", {}, found, h("button", { type: "button", onclick: () => exportAs("txt") }, "Save as text"), h("button", { type: "button", onclick: () => exportAs("json") }, "Save as JSON")), list),
  );

  function pick() {
    state.from = Date.parse(from.value) || 0;
    state.to = to.value ? Date.parse(to.value) + 999 : null;
    state.prefix = prefix.value.trim();
    remember();
    read();
  }

  function preset(length) {
    state.from = length === null ? 0 : Date.now() + (context.skew ?? 0) - length;
    state.to = null;
    from.value = state.from ? forInput(state.from) : "";
    to.value = "";
    remember();
    read();
  }

  function remember() {
    const words = new URLSearchParams();
    if (state.from) words.set("from", Math.round(state.from));
    if (state.to) words.set("to", Math.round(state.to));
    if (state.prefix) words.set("prefix", state.prefix);
    history.replaceState(null, "", `#/incident?${words}`);
  }

  let turn = 0;
  async function read() {
    turn += 1;
    const mine = turn;
    setText(found, "reading…");
    try {
      const end = state.to ?? Date.now() + (context.skew ?? 0) + MARGIN_MS;
      const { events, complete } = await readEvents(state.from - MARGIN_MS, end + MARGIN_MS);
      // What the log of events has forgotten, the histories of resources still know: who held what, from when to when.
      const until = complete ? -Infinity : events.length ? Date.parse(events[0].at) : Infinity;
      const older = complete ? [] : fromHistories(await everything(api.histories, "histories", { prefix: state.prefix }), until);
      if (mine !== turn) return;
      state.lines = inWindow([...older, ...events], state.from, end, state.prefix);
      state.note = complete ? "" : ` Before ${until === Infinity ? "now" : calendar(until)} only grants and ends are remembered.`;
      select();
    } catch (error) {
      if (mine === turn) setText(found, `cannot be shown: ${inWords(error)}`);
    }
  }

  function select() {
    const all = counts(state.lines);
    kinds.replaceChildren(...Object.entries(KINDS).map(([kind, name]) =>
      h("button", { type: "button", class: `kind kind-${kind}`, "aria-pressed": String(!state.hidden.has(kind)), onclick: () => toggle(kind) }, `${name} ${count(all[kind])}`)));
    state.shown = state.lines.filter((one) => !state.hidden.has(one.group));
    space.style.height = `${state.shown.length * rowHeight()}px`;
    setText(found, `${plural(state.shown.length, "event", "events")} of ${count(state.lines.length)}.${state.note}`);
    made.clear();
    space.replaceChildren();
    draw();
  }

  function toggle(kind) {
    if (!state.hidden.delete(kind)) state.hidden.add(kind);
    select();
    kinds.querySelector(`.kind-${kind}`)?.focus();
    announce(`${KINDS[kind]} ${state.hidden.has(kind) ? "hidden" : "shown"}`);
  }

  const narrow = matchMedia("(max-width: 720px)");
  const rowHeight = () => (narrow.matches ? ROW_NARROW : ROW);

  const made = new Map();
  function draw() {
    const { first, end } = visible(state.shown.length, rowHeight(), list.scrollTop, list.clientHeight || 500);
    for (const [index, element] of made) {
      if (index >= first && index < end) continue;
      element.remove();
      made.delete(index);
    }
    for (let index = first; index < end; index += 1) {
      if (made.has(index)) continue;
      const one = state.shown[index];
      const name = one.event.resource ?? one.event.scope?.replace(/#\d+$/, "");
      const element = h("li", { class: `kind-${one.group}${one.grave ? " grave" : ""}`, "aria-setsize": state.shown.length, "aria-posinset": index + 1 },
        h("time", { datetime: one.event.at, title: calendar(one.at) }, clock(one.at)),
        h("span.revision", {}, one.revision ?? ""),
        h("span.dot", { "aria-hidden": "true" }),
        name ? h("a", { href: `#/resource/${encodeURIComponent(name)}` }, one.text) : h("span", {}, one.text));
      element.style.transform = `translateY(${index * rowHeight()}px)`;
      made.set(index, element);
      space.append(element);
    }
  }

  function exportAs(kind) {
    const about = { from: state.lines.length ? Math.max(state.from, state.lines[0].at) : state.from, to: state.to ?? Date.now(), cluster: context.cluster?.cluster };
    const name = `tenure-incident-${new Date(about.from).toISOString().slice(0, 19).replace(/:/g, "")}.${kind}`;
    if (kind === "json") save(name, "application/json", asJson(state.shown, about));
    else save(name, "text/plain", asText(state.shown, about));
    announce(`saved as ${name}`);
  }

  // While the window is open at its end, what happens comes in by itself.
  let planned = 0;
  const silence = context.watch.listen((update) => {
    if (state.to !== null || update.type === "lost") return;
    clearTimeout(planned);
    planned = setTimeout(read, 500);
  });
  const redraw = () => select();
  narrow.addEventListener("change", redraw);
  read();
  return {
    unmount() {
      narrow.removeEventListener("change", redraw);
      turn += 1;
      clearTimeout(planned);
      silence();
    },
  };
}

/** The events between two moments, as far as they are remembered, and whether that is all. */
async function readEvents(from, to) {
  const head = await api.events({ limit: 1 });
  const oldest = head.events.length ? Date.parse(head.events[0].at) : null;
  const complete = head.complete_from <= 1 || (oldest !== null && oldest <= from);
  const time = async (revision) => {
    const page = await api.events({ from: revision, limit: 1 });
    return page.events.length ? Date.parse(page.events[0].at) : null;
  };
  const start = oldest === null || oldest >= from ? head.complete_from : await firstRevision(head.complete_from, head.revision, from, time);
  const events = [];
  for (let next = start; next !== null; ) {
    const page = await api.events({ from: next, limit: 1000 });
    events.push(...page.events);
    if (page.events.length && Date.parse(page.events.at(-1).at) > to) break;
    next = page.next;
  }
  return { events, complete };
}
