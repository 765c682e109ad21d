// The status page: reads the public API and nothing else. It decides nothing; it counts down durations that the
// server sent.

const EVENTS_SHOWN = 40;
const byId = (id) => document.getElementById(id);

let leases = [];
let readAt = 0;

function cell(text, kind) {
  const element = document.createElement("td");
  element.textContent = text;
  if (kind) element.className = kind;
  return element;
}

function row(...cells) {
  const element = document.createElement("tr");
  element.append(...cells);
  return element;
}

function span(ms) {
  if (ms === null || ms === undefined) return "";
  if (ms < 60_000) return `${(Math.max(ms, 0) / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.floor(ms / 1000) % 60} s`;
}

function mode(value) {
  return typeof value === "string" ? value : `slot of ${value.slots}`;
}

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store" });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error?.message ?? answer.statusText);
  return body;
}

function showLeases() {
  const passed = performance.now() - readAt;
  byId("leases").replaceChildren(
    ...leases.flatMap((lease) =>
      lease.holders.map((holder) =>
        row(
          cell(holder.slot === null ? lease.resource : `${lease.resource}#${holder.slot}`),
          cell(holder.holder),
          cell(mode(holder.mode), "quiet"),
          cell(holder.token, "number"),
          cell(holder.generation, "number"),
          cell(holder.notice ? `${span(holder.remaining_ms - passed)} (${holder.notice})` : span(holder.remaining_ms - passed), "number"),
          cell(lease.waiters.length || "", "number"),
        ),
      ),
    ),
  );
}

function showCluster(cluster) {
  const leader = cluster.leader === null ? "no leader" : `node ${cluster.leader} leads, term ${cluster.term}`;
  const tolerant = cluster.fault_tolerant ? "" : " · not fault-tolerant";
  byId("summary").className = cluster.leader === null ? "bad" : "";
  byId("summary").textContent =
    `node ${cluster.node} · ${leader} · revision ${cluster.revision} · last token ${cluster.last_token} · ` +
    `${cluster.sessions} sessions · ${cluster.waiters} in line${tolerant}`;
  byId("nodes").replaceChildren(
    ...cluster.nodes.map((node) =>
      row(
        cell(node.node, "number"),
        cell(node.reachable ? node.role : `${node.role}, out of reach`, node.reachable ? "" : "bad"),
        cell(node.client_address),
        cell(node.peer_address),
        cell(node.last_log ?? "", "number"),
        cell(node.version, "quiet"),
      ),
    ),
  );
}

async function refresh() {
  try {
    showCluster(await ask("/v1/cluster"));
    const page = await ask("/v1/leases?limit=200");
    leases = page.leases;
    readAt = performance.now();
    byId("more").hidden = page.next === null;
    byId("more").textContent = "There are more than these.";
    showLeases();
  } catch (error) {
    byId("summary").className = "bad";
    byId("summary").textContent = `this node does not answer: ${error.message}`;
  }
}

let refreshSoon = 0;
function refreshAfterEvents() {
  clearTimeout(refreshSoon);
  refreshSoon = setTimeout(refresh, 200);
}

function showEvent(event) {
  const { kind, at, revision, ...rest } = JSON.parse(event.data);
  const item = document.createElement("li");
  const details = Object.entries(rest)
    .filter(([, value]) => value !== null && value !== 0)
    .map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`);
  item.textContent = `${at.slice(11, 23)}  ${String(revision).padStart(6)}  ${kind}  ${details.join("  ")}`.slice(0, 400);
  byId("events").prepend(item);
  while (byId("events").childElementCount > EVENTS_SHOWN) byId("events").lastChild.remove();
  refreshAfterEvents();
}

const KINDS = [
  "opened", "closed", "lapsed", "granted", "ended", "noticed", "queued", "unqueued", "put", "deleted", "barrier",
  "armed", "refused", "paused", "took_office", "changed",
];
const source = new EventSource("/v1/watch");
for (const kind of KINDS) source.addEventListener(kind, showEvent);

refresh();
setInterval(refresh, 2000);
setInterval(showLeases, 100);
