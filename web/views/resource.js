// One resource: who holds it, who waits and why, who held it before and when nobody did, and what its fences know.

import { api, inWords } from "../api.js";
import { announce, badge, cell, confirm, h, section, setText, table } from "../dom.js";
import { timeline } from "../draw.js";
import { whyWaits } from "../logic/leases.js";
import { bars, gaps, lanes, summary, Window } from "../logic/timeline.js";
import { calendar, count, cut, mode, plural, scope, span, when, why } from "../logic/words.js";

const READ_EVERY_MS = 2_000;
const DAY = 86_400_000;
const RANGES = [["5 min", 300_000], ["1 h", 3_600_000], ["24 h", DAY], ["all", null]];

export function mount(root, context, resource) {
  const state = { lease: null, history: null, refused: null, granted: new Map(), readAt: 0, range: null, zoomed: null };
  const status = h("p.health", { role: "status" }, "reading…");
  const holders = h("div");
  const waiters = h("div");
  const fences = h("div");
  const past = h("div");
  const picture = h("div.picture", { tabindex: "0", role: "group", "aria-label": "Timeline: plus and minus zoom, arrow keys move, 0 shows all", onkeydown: keys, onwheel: wheel, onpointerdown: drag });
  const gapText = h("dl.figures");
  const ranges = h("div.ranges", { role: "group", "aria-label": "Shown range" });
  root.append(
    h("p.crumb", {}, h("a", { href: "#/leases" }, "Leases"), " / "),
    h("h1.name", {}, resource),
    status,
    h("div.columns", {}, section("Holders", holders), section("Queued", waiters)),
    section("Leader gap, last 24 hours", gapText, ranges, picture),
    h("div.columns", {}, section("Fences", fences), section("History", past)),
  );

  // Reading.

  let reading = false;
  let again = false;
  async function read() {
    if (reading) {
      again = true;
      return;
    }
    reading = true;
    try {
      const at = performance.now();
      const [lease, history] = await Promise.all([api.lease(resource), api.history(resource)]);
      Object.assign(state, { lease, history, readAt: at });
      show();
    } catch (error) {
      if (error.code === "not_found") {
        status.replaceChildren(badge("never seen", "quiet"), " Nobody has held this resource, or it has been forgotten.");
        for (const part of [holders, waiters, fences, past, gapText, ranges, picture]) part.replaceChildren();
        state.lease = null;
      } else if (state.lease === null) {
        setText(status, inWords(error));
      }
    } finally {
      reading = false;
    }
    if (again) {
      again = false;
      read();
    }
  }

  async function readPast() {
    try {
      // The newest of what is remembered: refusals are few.
      const { revision, complete_from } = await api.events({ limit: 1 });
      const { events } = await api.events({ prefix: resource, from: Math.max(complete_from, revision - 900), limit: 1000 });
      state.refused = events.filter((event) => event.kind === "refused" && event.scope.replace(/#\d+$/, "") === resource);
      for (const event of events) if (event.kind === "granted" && event.resource === resource) state.granted.set(event.token, Date.parse(event.at));
      if (state.lease) show();
    } catch {
      state.refused = null;
    }
  }

  const serverNow = () => Date.now() + (context.skew ?? 0);

  // Showing.

  function show() {
    const { lease } = state;
    const parts = [
      lease.kind === null ? null : typeof lease.kind === "string" ? lease.kind.replace("_", " / ") : kindText(lease.kind),
      lease.token === null ? "no token yet" : `newest token ${count(lease.token)}`,
      `changed hands ${plural(lease.generation, "time", "times")}`,
    ].filter(Boolean);
    const text = parts.join(" · ");
    const word = lease.state === "held" ? (lease.holders.some((holder) => holder.notice) ? ["under notice", "warn"] : ["held", "good"]) : lease.delayed_ms ? ["resting", "warn"] : ["free", "quiet"];
    if (status.dataset.text !== word[0] + text) {
      status.dataset.text = word[0] + text;
      status.replaceChildren(badge(...word), ` ${text}`);
    }
    showHolders();
    showWaiters();
    showFences();
    showPast();
    showTimeline();
  }

  /** Keeps what has focus: a part whose content is the same is not built again. */
  function put(place, key, make) {
    const text = JSON.stringify(key);
    if (place.dataset.key === text) return;
    place.dataset.key = text;
    place.replaceChildren(...[make()].flat());
  }

  function showHolders() {
    const { lease } = state;
    const stable = lease.holders.map(({ remaining_ms, held_ms, ...rest }) => rest);
    put(holders, [stable, lease.state, lease.waiters.length, context.may("manage", resource), context.may("hold", resource)], () => {
      if (lease.holders.length === 0) return h("p.quiet", {}, lease.delayed_ms ? "Nobody: it rests after an unclean end." : "Nobody holds it.");
      return [
        ...lease.holders.map((holder, at) =>
          h("div.holder", {},
            h("p.who", {}, h("strong", {}, holder.holder), " ", h("span.quiet", {}, `session ${holder.session_number}`)),
            h("dl.figures", {},
              figure("Token", count(holder.token)), figure("Generation", count(holder.generation)), figure("Mode", mode(holder.mode)),
              holder.slot === null ? null : figure("Slot", holder.slot),
              figure("Held for", h("span", { "data-held": at })), figure("Left", h("span", { "data-left": at }))),
            h("span.bar", { class: holder.notice ? "bad" : null, "aria-hidden": "true" }, h("span.fill", { "data-fill": at })),
            holder.notice ? h("p", {}, badge("under notice", "warn"), ` It ends when the holder confirms, or when the time is up: ${why(holder.notice)}.`) : null,
            holder.lapsed ? h("p", {}, badge("lapsed", "warn"), " The first contender takes it.") : null,
            h("div.actions", {},
              context.may("manage", resource) ? h("button", { type: "button", onclick: () => revoke(holder) }, "Revoke…") : null,
              context.may("hold", resource) ? h("button", { type: "button", onclick: () => transfer(holder) }, "Transfer…") : null))),
      ];
    });
    count_down();
  }

  function count_down() {
    if (!state.lease) return;
    const passed = performance.now() - state.readAt;
    state.lease.holders.forEach((holder, at) => {
      const left = Math.max(holder.remaining_ms - passed, 0);
      const [leftText, heldText, fill] = ["left", "held", "fill"].map((name) => holders.querySelector(`[data-${name}="${at}"]`));
      if (!leftText) return;
      setText(leftText, `${span(left)} of ${span(holder.ttl_ms)}`);
      setText(heldText, span(holder.held_ms + passed));
      fill.style.width = `${Math.min((left / holder.ttl_ms) * 100, 100).toFixed(1)}%`;
      if (!holder.notice) fill.parentElement.className = left / holder.ttl_ms < 0.25 ? "bar warn" : "bar";
    });
    state.lease.waiters.forEach((waiter, at) => {
      const text = waiters.querySelector(`[data-waited="${at}"]`);
      if (text) setText(text, span(waiter.waited_ms + passed));
    });
  }

  function showWaiters() {
    const { lease } = state;
    const stable = lease.waiters.map(({ waited_ms, remaining_ms, ...rest }, at) => [rest, whyWaits(lease, at).map((reason) => ({ ...reason, ms: null, holders: reason.holders?.map((holder) => holder.holder) }))]);
    put(waiters, [stable, lease.waiting], () => {
      if (lease.waiters.length === 0) return h("p.quiet", {}, "Nobody waits.");
      const unseen = (lease.waiting ?? 0) - lease.waiters.length;
      return [h("ol.line", {}, ...lease.waiters.map((waiter, at) =>
        h("li", {},
          h("p.who", {}, h("strong", {}, waiter.holder), " ", h("span.quiet", {}, `session ${waiter.session_number}, ${mode(waiter.mode)}${waiter.priority ? `, priority ${waiter.priority}` : ""}`)),
          h("p", {}, "waits for ", h("span", { "data-waited": at }), ": ", whyWaits(lease, at).map(reasonText).join("; "), ".")))), unseen > 0 ? h("p.quiet", {}, `And ${plural(unseen, "more", "more")} behind them.`) : null].filter(Boolean);
    });
  }

  function showFences() {
    const { lease, refused } = state;
    put(fences, [lease.fences ?? [], lease.token, lease.holders.map((holder) => holder.token), refused], () => {
      const all = lease.fences ?? [];
      if (all.length === 0) {
        return h("p", {}, badge("not fenced", "warn"), " No fence is known for this resource. Without a check where its holder writes, a lease is advice: a paused holder that wakes up overwrites.");
      }
      const covered = all.filter((fence) => coverage(fence).kind === "good").length;
      return [
        h("p", {}, badge(`${covered} of ${all.length} armed`, covered === all.length ? "good" : "warn"), " with the newest token."),
        table("Fences", ["Fence", "Token", "Coverage", { title: "Refused", number: true }, "Last refused"],
          all.map((fence) => {
            const { text, kind, explain } = coverage(fence);
            return h("tr", {}, cell(fence.fence, null, true), cell((fence.armed ?? []).map((armed) => scope(count(armed.token), armed.slot)).join(", ") || "–"), cell(h("span", { title: explain }, badge(text, kind))), cell(count(fence.refused), fence.refused ? "number warn" : "number"), cell(fence.refused_at ? h("span", { title: calendar(Date.parse(fence.refused_at)) }, when(Date.parse(fence.refused_at), serverNow())) : "–"));
          })),
        refused?.length
          ? [h("h3", {}, "Refused writes"), h("ol.feed", {}, ...refused.slice(-20).reverse().map((event) => h("li.grave", {}, h("time", { datetime: event.at }, calendar(Date.parse(event.at))), ` ${event.fence}: ${plural(event.count, "write", "writes")} with token ${event.presented}, ${event.seen} was seen`)))]
          : null,
      ].flat().filter(Boolean);
    });
  }

  function coverage(fence) {
    const { lease } = state;
    const wanted = lease.holders.length ? lease.holders : lease.token === null ? [] : [{ slot: null, token: lease.token }];
    const marks = wanted.map((holder) => Math.max(...(fence.armed ?? []).filter((armed) => (armed.slot ?? null) === (holder.slot ?? null)).map((armed) => armed.token), 0) - holder.token);
    if ((fence.armed ?? []).length === 0) return { text: "never armed", kind: "bad", explain: "it would accept whatever comes first" };
    return marks.every((by) => by >= 0) ? { text: "armed", kind: "good", explain: "it refuses everything older than the newest grant" } : { text: "behind", kind: "warn", explain: "an older holder would pass" };
  }

  function showPast() {
    const { history } = state;
    put(past, [history.transitions, history.dropped ?? null], () => {
      if (history.transitions.length === 0) return h("p.quiet", {}, history.dropped ? cut(history.dropped) : "No lease of it has ended yet.");
      const rows = table("Past leases, the newest first", [{ title: "Token", number: true }, "Holder", "From", "Held", "Ended"],
        history.transitions.map((lease) =>
          h("tr", {}, cell(count(lease.token), "number", true), cell(scope(lease.holder, lease.slot)), cell(h("span", { title: calendar(Date.parse(lease.from)) }, when(Date.parse(lease.from), serverNow()))), cell(span(lease.held_ms)), cell(h("span", { title: why(lease.why), class: ["expired", "died", "taken_over", "revoked", "held_too_long"].includes(lease.why) ? "warn" : null }, lease.reason ? `${lease.why}: “${lease.reason}”` : lease.why)))));
      return history.dropped ? [rows, h("p.quiet", {}, cut(history.dropped))] : rows;
    });
  }

  // The timeline.

  function bounds(all, now) {
    const first = all.length ? Math.min(...all.map((bar) => bar.from)) : now - 3_600_000;
    return { from: first - Math.max((now - first) * 0.02, 500), to: now + Math.max((now - first) * 0.02, 500) };
  }

  function showTimeline() {
    if (!state.history) return;
    const now = serverNow();
    const all = lanes(bars(state.history, now, state.granted));
    const limit = bounds(all, now);
    const day = summary(gaps(all, now - DAY, now));
    const known = all.length ? Math.max(Math.min(now - all[0].from, DAY), 1) : 0;
    const held = known ? `${(100 - (day.total / known) * 100).toFixed(2)} %` : "–";
    put(gapText, [day.count, day.unplanned, span(day.total), span(day.longest), held], () => [
      figure("Gaps", count(day.count)), figure("Longest", span(day.longest)), figure("Total", span(day.total)),
      figure("After a loss", count(day.unplanned)), figure("Held", held),
    ]);
    put(ranges, [state.range, state.zoomed !== null], () => [
      ...RANGES.map(([name, length]) => h("button", { type: "button", "aria-pressed": String(state.zoomed === null && state.range === length), onclick: () => choose(length) }, name)),
      h("button", { type: "button", "aria-label": "Zoom in", onclick: () => zoom(0.5, 0.5) }, "+"),
      h("button", { type: "button", "aria-label": "Zoom out", onclick: () => zoom(2, 0.5) }, "−"),
    ]);
    const window = state.zoomed ?? (state.range === null ? new Window(limit.from, limit.to) : new Window(Math.max(now - state.range, Math.min(limit.from, now - 1000)), now));
    state.window = window;
    state.bounds = { from: Math.min(limit.from, now - DAY), to: limit.to };
    picture.replaceChildren(timeline({ width: Math.max(picture.clientWidth, 280), bars: all, gaps: gaps(all, window.from, Math.min(window.to, now)), window, now }));
  }

  function choose(length) {
    state.range = length;
    state.zoomed = null;
    showTimeline();
  }

  function zoom(factor, share) {
    state.zoomed = state.window.zoom(factor, share, state.bounds);
    showTimeline();
    announce(`${span(state.zoomed.to - state.zoomed.from)} are shown`);
  }

  function pan(share) {
    state.zoomed = state.window.pan(share, state.bounds);
    showTimeline();
  }

  function keys(event) {
    const act = { "+": () => zoom(0.5, 0.5), "=": () => zoom(0.5, 0.5), "-": () => zoom(2, 0.5), ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), 0: () => choose(null) }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  function wheel(event) {
    if (!state.window) return;
    const box = picture.getBoundingClientRect();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      pan((event.deltaX || event.deltaY) / box.width);
    } else if (event.ctrlKey || document.activeElement === picture) {
      // Without focus or control the wheel scrolls the page, as anywhere.
      event.preventDefault();
      zoom(Math.exp(event.deltaY / 300), (event.clientX - box.left) / box.width);
    }
  }

  function drag(event) {
    if (!state.window || event.button !== 0) return;
    const box = picture.getBoundingClientRect();
    let x = event.clientX;
    const move = (moved) => {
      if (Math.abs(moved.clientX - x) < 2) return;
      pan((x - moved.clientX) / box.width);
      x = moved.clientX;
    };
    const end = () => {
      document.removeEventListener("pointermove", move);
      document.removeEventListener("pointerup", end);
    };
    document.addEventListener("pointermove", move);
    document.addEventListener("pointerup", end);
  }

  // What an administrator may do, asked twice.

  async function revoke(holder) {
    const asked = await confirm({
      title: `Revoke the lease of ${holder.holder}?`,
      explain: [
        `By notice, the lease of ${resource} ends when ${holder.holder} confirms, or at its deadline: the holder has time to stop.`,
        "At once, nobody is waited for. A holder that is still working is stopped by fences alone.",
      ],
      fields: [
        { name: "reason", label: "Reason, kept in the history", max: 512 },
        { name: "now", label: `End it at once${(state.lease?.fences ?? []).length === 0 ? "; no fence is known, nothing would stop the holder" : ""}`, type: "checkbox" },
      ],
      action: "Revoke",
      grave: true,
    });
    if (!asked) return;
    await act(() => api.revoke(resource, { session_number: holder.session_number, now: asked.now, reason: asked.reason }), asked.now ? "Revoked." : "Notice was given.");
  }

  async function transfer(holder) {
    const line = state.lease?.waiters ?? [];
    if (line.length === 0) {
      await confirm({ title: "Nobody waits for it", explain: "A lease is handed to a session that is queued for it. Let the successor acquire with waiting first.", action: "I see" });
      return;
    }
    const asked = await confirm({
      title: `Hand ${resource} over?`,
      explain: [
        "The lease ends and is granted to the successor in one step, with a new token.",
        `Only ${holder.holder} may hand it over, so its session id is needed: only its opener has it.`,
      ],
      fields: [
        { name: "to", label: "Successor", options: line.map((waiter) => ({ value: waiter.session_number, text: `${waiter.holder} (session ${waiter.session_number})` })) },
        { name: "session", label: `Session id of ${holder.holder}`, required: true, pattern: "[0-9]+-[0-9a-f]{32}", hint: `begins with ${holder.session_number}-` },
      ],
      action: "Hand over",
      grave: true,
    });
    if (!asked) return;
    await act(() => api.transfer(resource, { session: asked.session, to: Number(asked.to) }), "Handed over.");
  }

  async function act(call, done) {
    try {
      await call();
      announce(done);
    } catch (error) {
      await confirm({ title: "It was not done", explain: inWords(error), action: "I see" });
    }
    read();
  }

  const silence = context.watch.listen((update) => {
    if (update.type === "open") return void read();
    if (update.type !== "event") return;
    const name = update.event.resource ?? update.event.scope?.replace(/#\d+$/, "");
    if (name !== resource) return;
    if (update.event.kind === "refused") readPast();
    if (update.event.kind === "granted") state.granted.set(update.event.token, Date.parse(update.event.at));
    read();
  });
  const redraw = () => showTimeline();
  window.addEventListener("resize", redraw);
  read();
  readPast();
  const reader = setInterval(() => !document.hidden && read(), READ_EVERY_MS);
  const ticker = setInterval(() => !document.hidden && count_down(), 200);
  return {
    unmount() {
      clearInterval(reader);
      clearInterval(ticker);
      silence();
      window.removeEventListener("resize", redraw);
    },
  };
}

function figure(name, content) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, content));
}

function kindText(kind) {
  return kind.semaphore ? `semaphore of ${kind.semaphore}` : kind.slots ? `semaphore of ${kind.slots}` : JSON.stringify(kind);
}

function reasonText(reason) {
  switch (reason.kind) {
    case "held":
      return `held by ${reason.holders.map((holder) => `${holder.holder}${holder.notice ? " (under notice)" : ""}`).join(", ")}`;
    case "line":
      return `${plural(reason.ahead, "acquire", "acquires")} ahead in the queue${reason.prior ? `, ${reason.prior} of higher priority` : ""}`;
    case "rest":
      return `it rests for another ${span(reason.ms)} after an unclean end`;
    case "others":
      return `it also needs ${reason.resources.join(", ")}, all or none`;
    default:
      return "it is next";
  }
}
