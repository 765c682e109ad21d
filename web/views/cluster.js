// The cluster at a glance: who leads, who is there, how much happens, how time runs, and what just happened.

import { api } from "../api.js";
import { badge, cell, h, section, setText, table } from "../dom.js";
import { sparkline } from "../draw.js";
import { line } from "../logic/incident.js";
import { perSecond, quantile, Series, value } from "../logic/metrics.js";
import { clock, count, plural, rate, span } from "../logic/words.js";

const METRICS_EVERY_MS = 2_000;
const EVENTS_SHOWN = 60;
/** How many revisions back the feed begins. */
const RECENT = 30;

/** What the tiles show. Rates are of counters that are the same on every node. */
const TILES = [
  { id: "leases", name: "Leases", of: (now) => value(now, "tenure_leases"), show: count, note: "held now" },
  { id: "sessions", name: "Sessions", of: (now) => value(now, "tenure_sessions"), show: count, note: "one renewal keeps all leases of one" },
  { id: "waiters", name: "Queued", of: (now) => value(now, "tenure_waiters"), show: count, note: "acquires that wait for their turn" },
  { id: "grants", name: "Grants per second", counter: "tenure_grants_total", show: rate, total: "so far" },
  { id: "renewals", name: "Renewals per second", counter: "tenure_renewals_total", show: rate, total: "so far" },
  { id: "expiries", name: "Expiries per second", counter: "tenure_ends_total", labels: { why: "expired" }, show: rate, total: "so far", warn: (per) => per > 0 },
  { id: "refused", name: "Refused stale writes", of: (now) => (value(now, "tenure_fence_refusals_total") ?? 0) + (value(now, "tenure_register_refusals_total") ?? 0), show: count, note: "what fences and registers prevented", warn: (all) => all > 0 },
  { id: "near", name: "Near misses", of: (now) => value(now, "tenure_renewal_near_misses_total"), show: count, note: "renewals with less than a quarter of the TTL left", warn: (all) => all > 0 },
  { id: "time", name: "Cluster time", of: (now) => value(now, "tenure_cluster_time_seconds_total"), show: (seconds) => span(seconds * 1000), note: "what the log itself has counted" },
  { id: "dropped", name: "Dropped time", of: (now) => value(now, "tenure_time_dropped_seconds_total"), show: (seconds) => span(seconds * 1000), note: "counted against nobody, since this node's start", leaderOnly: true },
  { id: "late", name: "Expiry runs late by", of: (now) => quantile(now, "tenure_expiry_lateness_seconds", 0.99), show: (seconds) => (seconds === null ? "–" : `≤ ${span(seconds * 1000)}`), note: "99 % of expiries, in cluster time" },
  { id: "sync", name: "Log sync", of: (now) => quantile(now, "tenure_log_sync_seconds", 0.99), show: (seconds) => (seconds === null ? "–" : `≤ ${span(seconds * 1000)}`), note: "99 % on this node" },
];

export function mount(root, context) {
  const health = h("p.health", { role: "status" });
  const nodes = h("div");
  const tiles = new Map(TILES.map((tile) => [tile.id, makeTile(tile)]));
  const events = h("ol.feed", { id: "events", tabindex: "0", "aria-label": "What happens, the newest first" });
  root.append(
    h("h1", {}, "Cluster"),
    health,
    h("div.tiles", { role: "list" }, ...[...tiles.values()].map((tile) => tile.element)),
    section("Nodes", nodes),
    section("What happens", h("p.quiet", { id: "nothing-yet" }, "Nothing has happened yet. Renewals change nothing that is visible."), events),
  );

  let before = null;
  async function readMetrics() {
    if (document.hidden) return;
    try {
      const now = { page: await api.metrics(), at: performance.now() };
      const leads = value(now.page, "tenure_is_leader") === 1;
      for (const tile of tiles.values()) tile.take(now, before, leads);
      before = now;
    } catch {
      // The frame tells that the node does not answer; old numbers stay.
    }
  }

  function showCluster(cluster) {
    if (!cluster) return;
    const answer = cluster.nodes.filter((node) => node.reachable).length;
    const majority = Math.floor(cluster.nodes.length / 2) + 1;
    const spare = answer - majority;
    const [word, kind] = cluster.leader === null ? ["no leader", "bad"] : answer < cluster.nodes.length ? ["degraded", "warn"] : !cluster.fault_tolerant ? ["not fault-tolerant", "warn"] : ["healthy", "good"];
    const sentence = [
      cluster.leader === null ? `term ${cluster.term}` : `node ${cluster.leader} leads in term ${cluster.term}`,
      `${answer} of ${plural(cluster.nodes.length, "node", "nodes")} ${answer === 1 ? "answers" : "answer"}`,
      cluster.leader === null ? "nothing is granted or expired" : spare > 0 ? `survives the loss of ${plural(spare, "more node", "more nodes")}` : "would not survive the loss of another",
      `revision ${count(cluster.revision)}`,
      `last token ${count(cluster.last_token)}`,
    ];
    if (cluster.restoring_ms) sentence.push(`restored: grants nothing for another ${span(cluster.restoring_ms)}`);
    const text = sentence.join(" · ");
    if (health.dataset.text !== word + text) {
      health.dataset.text = word + text;
      health.replaceChildren(badge(word, kind), ` ${text}`);
    }
    const furthest = Math.max(...cluster.nodes.map((node) => node.last_log ?? 0));
    nodes.replaceChildren(
      table("Nodes", ["Node", "Role", "Health", { title: "Log", number: true }, { title: "Behind", number: true }, "Clients", "Peers", "Version"],
        cluster.nodes.map((node) => {
          const behind = node.last_log === null ? null : furthest - node.last_log;
          return h("tr", {},
            cell(node.node === cluster.node ? `${node.node} (this one)` : String(node.node), null, true),
            cell(node.role === "leader" ? h("strong", {}, "leader") : node.role),
            cell(node.reachable ? badge("answers", "good") : badge("out of reach", "bad")),
            cell(node.last_log === null ? "–" : count(node.last_log), "number"),
            cell(behind === null ? "–" : count(behind), behind > 1000 ? "number warn" : "number"),
            cell(node.node === cluster.node || !node.client_address ? node.client_address || "–" : h("a", { href: `//${node.client_address}/` }, node.client_address)),
            cell(node.peer_address),
            cell(node.version, "quiet"));
        })),
    );
  }

  // What just happened, from before this page was opened; what happens meanwhile comes by itself.
  let newest = 0;
  let waiting = [];
  async function readRecent() {
    const early = waiting;
    try {
      const { revision, complete_from } = await api.events({ limit: 1 });
      const page = await api.events({ from: Math.max(complete_from, revision - RECENT + 1), limit: 2 * EVENTS_SHOWN });
      for (const event of page.events.slice(-EVENTS_SHOWN)) showEvent(event);
      newest = page.events.at(-1)?.revision ?? 0;
    } catch {
      // The frame tells that the node does not answer; the feed begins with what happens next.
    }
    waiting = null;
    for (const event of early) if (event.revision > newest) showEvent(event);
  }

  function showEvent(event) {
    document.getElementById("nothing-yet")?.remove();
    const shown = line(event);
    events.prepend(h("li", { class: shown.grave ? "grave" : null }, h("time", { datetime: event.at }, clock(shown.at)), " ", shown.about && event.resource ? h("a", { href: `#/resource/${encodeURIComponent(event.resource)}` }, shown.text) : shown.text));
    while (events.childElementCount > EVENTS_SHOWN) events.lastChild.remove();
  }

  const silence = context.watch.listen((update) => {
    if (update.type !== "event") return;
    if (waiting) waiting.push(update.event);
    else if (update.event.revision > newest) showEvent(update.event);
  });
  readRecent();
  context.onCluster.add(showCluster);
  showCluster(context.cluster);
  readMetrics();
  const timer = setInterval(readMetrics, METRICS_EVERY_MS);
  return {
    unmount() {
      clearInterval(timer);
      silence();
      context.onCluster.delete(showCluster);
    },
  };
}

function makeTile(tile) {
  const figure = h("p.figure", {}, "–");
  const note = h("p.note", {}, tile.note ?? "");
  const spark = h("div.spark-box");
  const series = new Series();
  return {
    element: h("div.tile", { role: "listitem", id: `tile-${tile.id}` }, h("h2", {}, tile.name), figure, note, spark),
    take(now, before, leads) {
      let shown;
      if (tile.counter) {
        const total = value(now.page, tile.counter, tile.labels);
        const earlier = before && value(before.page, tile.counter, tile.labels);
        shown = before ? perSecond(earlier, total, (now.at - before.at) / 1000) : null;
        setText(note, `${count(total)} ${tile.total}`);
      } else {
        shown = tile.of(now.page);
      }
      setText(figure, shown === null && !["late", "sync"].includes(tile.id) ? "–" : tile.show(shown));
      figure.classList.toggle("warn", Boolean(shown !== null && tile.warn?.(shown)));
      if (tile.leaderOnly && !leads) setText(note, "the leader counts it; this node does not lead");
      if (tile.counter) {
        series.push(shown);
        spark.replaceChildren(sparkline(series.values));
      }
    },
  };
}
