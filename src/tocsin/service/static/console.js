// The console: switches views, manages the token and polls the service.
import { ask, token, useToken } from "./service.js";
import { DeadLetters, Feed, WhyNot } from "./feed.js";
import { Rules } from "./rules.js";
import { drawGraph } from "./graph.js";
import { drawMap } from "./map.js";
import { Rates } from "./rates.js";
import { count, by } from "./dom.js";

const VIEWS = ["live", "rules", "graph", "map"];
let view = "live";

function show(name) {
  view = name;
  for (const one of VIEWS) {
    const tab = by(`tab-${one}`);
    tab.setAttribute("aria-selected", String(one === name));
    tab.tabIndex = one === name ? 0 : -1;
    by(`view-${one}`).hidden = one !== name;
  }
  refresh();
}

function tabs() {
  for (const [index, name] of VIEWS.entries()) {
    const tab = by(`tab-${name}`);
    tab.addEventListener("click", () => show(name));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = VIEWS[(index + step + VIEWS.length) % VIEWS.length];
      show(next);
      by(`tab-${next}`).focus();
    });
  }
}

function theme() {
  const root = document.documentElement;
  const wanted = localStorage.getItem("tocsin-theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const set = (name) => { root.dataset.theme = name; dispatchEvent(new Event("themed")); };
  set(wanted ?? (dark.matches ? "dark" : "light"));
  dark.addEventListener("change", () => { if (!localStorage.getItem("tocsin-theme")) set(dark.matches ? "dark" : "light"); });
  by("theme").addEventListener("click", () => {
    const next = root.dataset.theme === "dark" ? "light" : "dark";
    localStorage.setItem("tocsin-theme", next);
    set(next);
  });
}

function say(text, kind = "") {
  by("state").textContent = text;
  by("state").className = `state ${kind}`;
}

let asked = false;
async function askForToken() {
  if (asked) return;
  asked = true;
  const dialog = by("token-dialog");
  dialog.showModal();
  await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
  useToken(by("token").value.trim());
  by("token").value = "";
  asked = false;
  feed.restart();
  refresh();
}

const rates = new Rates();
const rules = new Rules(() => refresh());
const feed = new Feed();
const whyNot = new WhyNot();
const deadLetters = new DeadLetters();

async function refresh() {
  try {
    const status = await ask("GET", "/status");
    say(status.state, status.state === "running" ? "good" : "bad");
    by("state").title = status.failure ?? (status.engine === "spark" ? "detects on Spark" : "detects in this process");
    by("n-events").textContent = count(status.events_per_s);
    by("n-matches").textContent = count(status.matches_per_s);
    by("n-lag").textContent = status.lag_ms < 1000 ? `${Math.round(status.lag_ms)} ms` : `${(status.lag_ms / 1000).toFixed(1)} s`;
    by("n-rules").textContent = status.rules;
    by("n-total").textContent = count(status.events);
    by("n-dead").textContent = count(status.dead_letters + status.rejected);
    rates.take(status);
    if (view === "rules" || !rules.known) await rules.refresh();
    feed.name(rules.names);
    whyNot.name(rules.known);
    if (view === "live") await deadLetters.refresh();
    if (view === "graph") drawGraph(by("graph"), await ask("GET", "/graph"));
    if (view === "map") drawMap(await ask("GET", "/map"));
  } catch (error) {
    if (error.status === 401) { say("token required", "bad"); await askForToken(); }
    else if (error.status === 403) say("token lacks the role", "bad");
    else say("not reachable", "bad");
  }
}

const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  useToken(given);
  history.replaceState(null, "", location.pathname);
}
theme();
tabs();
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
refresh();
feed.restart();
setInterval(() => { if (!document.hidden && !asked) refresh(); }, 1000);
