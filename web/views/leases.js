// All leases: searched, sorted, and only as many rows as are in sight.

import { api, everything, inWords } from "../api.js";
import { announce, h, setText } from "../dom.js";
import { leftOf, reveal, rowsOf, search, sort, visible } from "../logic/leases.js";
import { count, plural, span } from "../logic/words.js";

const ROW = 40;
const ROW_NARROW = 74;
/** What is read again and how often: everything if it is one page, else what is in sight. */
const READ_EVERY_MS = 2_000;
const PAGE = 1_000;
/** More changes than this at once, and the whole list is read again. */
const SINGLE_MAX = 40;

const COLUMNS = [
  { id: "name", title: "Resource" },
  { id: "holder", title: "Holder" },
  { id: "token", title: "Token", number: true },
  { id: "generation", title: "Generation", number: true },
  { id: "remaining", title: "Left" },
  { id: "waiters", title: "Queued", number: true },
  { id: "fences", title: "Fences armed", number: true },
];

export function mount(root, context, _, parameters) {
  const state = {
    leases: new Map(),
    rows: [],
    shown: [],
    query: parameters.get("q") ?? "",
    column: COLUMNS.some((column) => column.id === parameters.get("by")) ? parameters.get("by") : "name",
    descending: parameters.has("down"),
    active: 0,
    complete: false,
    took: 0,
  };
  const found = h("p.found", { role: "status" }, "reading…");
  const input = h("input", { type: "search", id: "search", placeholder: "resource, holder or token", value: state.query, "aria-controls": "list", autocomplete: "off", spellcheck: "false", oninput: () => changed(input.value) });
  const heads = COLUMNS.map((column) =>
    h("div", { role: "columnheader", class: column.number ? `number col-${column.id}` : `col-${column.id}` }, h("button", { type: "button", onclick: () => by(column.id) }, column.title, h("span.arrow", { "aria-hidden": "true" }))),
  );
  const space = h("div.rows", { role: "rowgroup" });
  const body = h("div.viewport", { id: "list", onscroll: () => draw(), onkeydown: keys, tabindex: "-1" }, space);
  const grid = h("div.grid", { role: "table", "aria-label": "Leases", "aria-colcount": COLUMNS.length }, h("div.head", { role: "rowgroup" }, h("div.row", { role: "row", "aria-rowindex": 1 }, ...heads)), body);
  root.append(h("h1", {}, "Leases"), h("div.tools", {}, h("label", { for: "search" }, "Search"), input, found), grid);

  const narrow = matchMedia("(max-width: 720px)");
  const rowHeight = () => (narrow.matches ? ROW_NARROW : ROW);

  // Reading.

  const dirty = new Set();
  let reading = false;
  let gone = false;

  function take(leases, readAt) {
    for (const lease of leases) state.leases.set(lease.resource, rowsOf(lease, readAt));
  }

  async function readAll() {
    const at = performance.now();
    const fresh = new Map();
    const first = state.leases.size === 0;
    await everything(api.leases, "leases", {}, (leases) => {
      // The first time what is there is shown while the rest comes.
      if (first && leases.length % PAGE === 0) {
        take(leases.slice(-PAGE), performance.now());
        select();
      }
    }).then((leases) => {
      for (const lease of leases) fresh.set(lease.resource, rowsOf(lease, at));
    });
    state.leases = fresh;
    state.complete = true;
  }

  async function readThese(names) {
    await Promise.all(
      names.map(async (name) => {
        const at = performance.now();
        const lease = await api.lease(name).catch((error) => {
          if (error.code === "not_found") return null;
          throw error;
        });
        if (lease && lease.state === "held") state.leases.set(name, rowsOf(lease, at));
        else state.leases.delete(name);
      }),
    );
  }

  let fullAt = 0;
  async function read() {
    if (reading || document.hidden || gone) return;
    reading = true;
    try {
      const few = state.complete && state.leases.size > PAGE && performance.now() - fullAt < 30_000 && dirty.size <= SINGLE_MAX;
      if (few) {
        const { first, end } = inSight();
        const names = new Set([...dirty, ...state.shown.slice(first, end).map((row) => row.resource)]);
        dirty.clear();
        await readThese([...names]);
      } else {
        dirty.clear();
        fullAt = performance.now();
        await readAll();
      }
      select();
    } catch (error) {
      fullAt = 0;
      setText(found, `as of before: ${inWords(error)}`);
    } finally {
      reading = false;
    }
    if (dirty.size > 0) soon();
  }

  let planned = 0;
  function soon() {
    clearTimeout(planned);
    planned = setTimeout(read, 150);
  }

  // Choosing.

  /** Which rows are shown, in which order. */
  function select() {
    const began = performance.now();
    state.rows = [...state.leases.values()].flat();
    state.shown = sort(search(state.rows, state.query), state.column, state.descending, began);
    state.active = Math.min(state.active, Math.max(state.shown.length - 1, 0));
    space.style.height = `${state.shown.length * rowHeight()}px`;
    grid.setAttribute("aria-rowcount", state.shown.length + 1);
    heads.forEach((head, at) => {
      const here = COLUMNS[at].id === state.column;
      head.setAttribute("aria-sort", here ? (state.descending ? "descending" : "ascending") : "none");
      setText(head.querySelector(".arrow"), here ? (state.descending ? " ↓" : " ↑") : "");
    });
    draw();
    state.took = performance.now() - began;
    grid.dataset.took = state.took.toFixed(1);
    const all = plural(state.rows.length, "lease", "leases");
    setText(found, state.query ? `${count(state.shown.length)} of ${all}` : state.complete ? all : `${all}, reading…`);
  }

  function changed(query) {
    state.query = query;
    state.active = 0;
    body.scrollTop = 0;
    select();
    remember();
  }

  function by(column) {
    state.descending = state.column === column ? !state.descending : ["token", "generation", "waiters"].includes(column);
    state.column = column;
    select();
    remember();
    announce(`sorted by ${column}, ${state.descending ? "falling" : "rising"}`);
  }

  function remember() {
    const words = new URLSearchParams();
    if (state.query) words.set("q", state.query);
    if (state.column !== "name") words.set("by", state.column);
    if (state.descending) words.set("down", "");
    history.replaceState(null, "", `#/leases${words.size ? `?${words}` : ""}`);
  }

  // Drawing: a row that stays in sight keeps its element.

  const made = new Map();

  function inSight() {
    return visible(state.shown.length, rowHeight(), body.scrollTop, body.clientHeight || 600);
  }

  function draw() {
    const { first, end } = inSight();
    const height = rowHeight();
    const now = performance.now();
    const keep = new Set();
    for (let index = first; index < end; index += 1) {
      const row = state.shown[index];
      let shown = made.get(row.key);
      if (!shown) {
        shown = makeRow();
        made.set(row.key, shown);
        space.append(shown.element);
      }
      keep.add(row.key);
      shown.set(row, index, height, index === state.active, now);
    }
    for (const [key, shown] of made) {
      if (keep.has(key)) continue;
      shown.element.remove();
      made.delete(key);
    }
    if (state.shown.length === 0 && state.complete) {
      space.dataset.empty = state.query ? "Nothing matches." : "Nobody holds anything.";
    } else delete space.dataset.empty;
  }

  function keys(event) {
    const page = Math.max(Math.floor(body.clientHeight / rowHeight()) - 1, 1);
    const to = { ArrowDown: state.active + 1, ArrowUp: state.active - 1, PageDown: state.active + page, PageUp: state.active - page, Home: 0, End: state.shown.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    state.active = Math.min(Math.max(to, 0), Math.max(state.shown.length - 1, 0));
    body.scrollTop = reveal(state.active, rowHeight(), body.scrollTop, body.clientHeight);
    draw();
    made.get(state.shown[state.active]?.key)?.link.focus({ preventScroll: true });
  }

  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") {
      event.preventDefault();
      state.active = 0;
      draw();
      made.get(state.shown[0]?.key)?.link.focus({ preventScroll: true });
    }
  });

  const silence = context.watch.listen((update) => {
    if (update.type === "open") fullAt = 0;
    if (update.type !== "event") return soon();
    const name = update.event.resource ?? update.event.scope?.replace(/#\d+$/, "");
    if (name) {
      dirty.add(name);
      soon();
    }
  });
  const redraw = () => select();
  narrow.addEventListener("change", redraw);
  window.addEventListener("resize", redraw);
  read();
  if (parameters.has("focus")) input.focus();
  const reader = setInterval(read, READ_EVERY_MS);
  // What is left counts down between two readings; a quarter of a second is fine enough for a bar.
  const ticker = setInterval(() => !document.hidden && draw(), 250);
  return {
    unmount() {
      gone = true;
      clearInterval(reader);
      clearInterval(ticker);
      clearTimeout(planned);
      silence();
      narrow.removeEventListener("change", redraw);
      window.removeEventListener("resize", redraw);
    },
  };
}

function makeRow() {
  const link = h("a", { tabindex: "-1" });
  const holder = h("span.text");
  const [token, generation, waiters, fences] = [h("span"), h("span"), h("span"), h("span")];
  const left = h("span.left-text");
  const fill = h("span.fill");
  const cellOf = (column, ...children) => h("div", { role: "cell", class: `col-${column.id}${column.number ? " number" : ""}`, "data-title": column.title }, ...children);
  const [name_, holder_, token_, generation_, remaining_, waiters_, fences_] = COLUMNS;
  const bar = h("span.bar", { "aria-hidden": "true" }, fill);
  const element = h("div.row", { role: "row" }, cellOf(name_, link), cellOf(holder_, holder), cellOf(token_, token), cellOf(generation_, generation), cellOf(remaining_, bar, left), cellOf(waiters_, waiters), cellOf(fences_, fences));
  return {
    element,
    link,
    set(row, index, height, active, now) {
      element.style.transform = `translateY(${index * height}px)`;
      element.setAttribute("aria-rowindex", index + 2);
      link.tabIndex = active ? 0 : -1;
      setText(link, row.name);
      const to = `#/resource/${encodeURIComponent(row.resource)}`;
      if (link.getAttribute("href") !== to) link.setAttribute("href", to);
      link.title = row.name;
      setText(holder, row.mode === "exclusive" ? row.holder : `${row.holder} (${row.mode})`);
      setText(token, count(row.token));
      setText(generation, count(row.generation));
      setText(waiters, row.waiters || "");
      setText(fences, row.fences === 0 ? "none" : `${row.armed} of ${row.fences}`);
      fences.className = row.fences > 0 && row.armed < row.fences ? "warn" : row.fences === 0 ? "quiet" : "";
      const ms = leftOf(row, now);
      const share = Math.min(ms / row.ttl, 1);
      fill.style.width = `${(share * 100).toFixed(1)}%`;
      bar.className = row.notice ? "bar bad" : share < 0.25 ? "bar warn" : "bar";
      setText(left, row.lapsed ? "lapsed" : row.notice ? `${span(ms)}, ${row.notice}` : span(ms));
    },
  };
}
