// The frame around the views: which one is shown, how the link to the server is, and the few keys.

import { api, inWords, isSignedIn, Refused, signIn, signOut, Watch } from "./api.js";
import { announce, setText } from "./dom.js";
import { may, seesNothing } from "./logic/credential.js";
import { clock, span } from "./logic/words.js";
import * as cluster from "./views/cluster.js";
import * as incident from "./views/incident.js";
import * as leases from "./views/leases.js";
import * as resource from "./views/resource.js";
import * as signin from "./views/signin.js";
import * as tuner from "./views/tuner.js";

const VIEWS = { cluster, leases, resource, incident, tuner, signin };
const KEYS = { 1: "cluster", 2: "leases", 3: "incident", 4: "tuner" };
const CLUSTER_EVERY_MS = 2_000;
/** Policies change while a page is open. */
const WHO_EVERY_MS = 10_000;

const main = document.getElementById("main");
const watch = new Watch();

/** What every view is given. */
const context = {
  watch,
  cluster: null,
  /** How far the server's calendar is ahead of this browser's, for drawing; nothing decides by it. */
  skew: null,
  /** Since when the server does not answer; null while it does. */
  lostSince: null,
  onCluster: new Set(),
  /** Who the node takes this page for, and what it may do; null until that is known. */
  who: null,
  /** Whether an action is worth offering. */
  may: (verb, name) => may(context.who, verb, name),
  signIn: enter,
  signOut: leave,
};

// Signing in and out. What was pasted stays in `api.js`.

async function readWho() {
  try {
    context.who = await api.whoAmI();
  } catch (error) {
    // What was pasted is not accepted: it is not tried again and again.
    if (!(error instanceof Refused) || error.status !== 401) return error;
    signOut();
    context.who = null;
    return error;
  } finally {
    tellWho();
  }
  return null;
}

function tellWho() {
  const button = document.getElementById("who");
  const { who } = context;
  button.hidden = !(who?.enforced || isSignedIn());
  setText(button, isSignedIn() && who ? who.identity : "Sign in");
  button.title = isSignedIn() ? "Who you are; sign out" : "Sign in with a credential file";
  // A link cannot present anything.
  document.getElementById("metrics").hidden = Boolean(who?.enforced);
}

/** Presents what was pasted; gives back why that does not work, or null. */
async function enter(text) {
  if (!signIn(text)) return "This is no credential file: it begins with “tenure-credential: 1” and has a line “credential: tenure_…”.";
  const failed = await readWho();
  if (failed) return inWords(failed);
  watch.open();
  await readCluster();
  // Whoever wanted to see something, and was asked first, sees that.
  if (route().view === "signin") location.hash = "#/cluster";
  show();
  announce(`signed in as ${context.who.identity}`);
  return null;
}

async function leave() {
  signOut();
  await readWho();
  watch.open();
  show();
  announce("signed out");
}

let shown = null;

function route() {
  const [path, parameters] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  const view = VIEWS[name] ? name : "cluster";
  return { view, rest: rest.map(decodeURIComponent).join("/"), parameters: new URLSearchParams(parameters ?? "") };
}

function show() {
  const { view: asked, rest, parameters } = route();
  // Whoever may see nothing is asked who they are.
  const view = seesNothing(context.who) ? "signin" : asked;
  // A view that can take the change itself (a search that is typed) is not built again.
  if (shown?.name === view && shown.view.change?.(rest, parameters)) return;
  shown?.view.unmount?.();
  main.replaceChildren();
  main.className = view;
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.dataset.view === view || (view === "resource" && link.dataset.view === "leases");
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  shown = { name: view, view: VIEWS[view].mount(main, context, rest, parameters) };
  const title = main.querySelector("h1")?.textContent ?? view;
  document.title = `${title} · Tenure`;
  announce(`${title} is shown`);
  window.scrollTo(0, 0);
}

// The link to the server, shown in one place.

function tellLink() {
  const link = document.getElementById("link");
  const trouble = document.getElementById("trouble");
  const { cluster, lostSince } = context;
  if (lostSince !== null) {
    link.className = "link bad";
    setText(link, "not connected");
    trouble.hidden = false;
    setText(trouble, `This node has not answered since ${clock(lostSince).slice(0, 8)} (${span(Math.floor((Date.now() - lostSince) / 1000) * 1000)}): ${context.lostWhy}. What is shown is from before that.`);
  } else if (cluster?.leader === null) {
    link.className = "link bad";
    setText(link, `node ${cluster.node}, no leader`);
    trouble.hidden = false;
    setText(trouble, "No leader is known here: nothing is granted, renewed or expired until one is. Holders keep what they have.");
  } else if (seesNothing(context.who)) {
    link.className = "link";
    setText(link, "not signed in");
    trouble.hidden = true;
  } else if (cluster) {
    link.className = "link good";
    setText(link, `live from node ${cluster.node}`);
    trouble.hidden = true;
  }
}

async function readCluster() {
  const asked = Date.now();
  try {
    context.cluster = await api.cluster();
    document.getElementById("insecure").hidden = context.cluster.insecure !== true;
    const back = context.lostSince !== null;
    context.lostSince = null;
    tellLink();
    for (const listener of context.onCluster) listener(context.cluster, back);
  } catch (error) {
    // A node that refuses is there: what it shows depends on who asks.
    if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
      context.lostSince = null;
      tellLink();
      return;
    }
    context.lostSince ??= asked;
    context.lostWhy = inWords(error);
    tellLink();
    for (const listener of context.onCluster) listener(null, false);
  }
}

let reading = false;
async function keepReading() {
  if (reading || document.hidden) return;
  reading = true;
  await readCluster();
  reading = false;
}

watch.listen((update) => {
  if (update.type === "event") {
    // What is on its way only looks older, so the youngest that an event ever looked is the best guess.
    context.skew = Math.max(context.skew ?? -Infinity, Date.parse(update.event.at) - Date.now());
    if (update.event.kind === "took_office") keepReading();
  } else {
    keepReading();
  }
});

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea, dialog");
  if (event.ctrlKey || event.metaKey || event.altKey || typing) return;
  if (KEYS[event.key]) location.hash = `#/${KEYS[event.key]}`;
  else if (event.key === "/") {
    event.preventDefault();
    const search = document.querySelector("input[type=search]");
    if (search) search.focus();
    else location.hash = "#/leases?focus";
  }
});
document.getElementById("who").addEventListener("click", () => {
  location.hash = "#/signin";
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
document.addEventListener("visibilitychange", keepReading);
window.addEventListener("hashchange", show);

await readWho();
await keepReading();
show();
watch.open();
setInterval(keepReading, CLUSTER_EVERY_MS);
setInterval(() => !document.hidden && readWho(), WHO_EVERY_MS);
setInterval(tellLink, 1000);
