// The live matches, newest first, and explanations of matches, missing matches and dead letters.
import { ask, listen } from "./service.js";
import { by, clock, cut, make, micros, summary } from "./dom.js";

const SHOWN = 150;

export class Feed {
  constructor() {
    this.matches = [];
    this.waiting = [];
    this.paused = false;
    this.chosen = null;
    this.turn = 0;
    this.rule = "";
    by("feed-pause").addEventListener("click", () => {
      this.paused = !this.paused;
      by("feed-pause").setAttribute("aria-pressed", String(this.paused));
      by("feed-pause").textContent = this.paused ? "Resume" : "Pause";
      if (!this.paused) this.flush();
    });
    by("feed-rule").addEventListener("change", () => { this.rule = by("feed-rule").value; this.restart(); });
    by("feed").addEventListener("keydown", (event) => {
      const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
      const next = step && event.target.closest("li")?.[step]?.querySelector("button");
      if (next) { event.preventDefault(); next.focus(); }
    });
  }

  async restart() {
    const turn = ++this.turn;
    try {
      const rule = this.rule ? `&rule=${encodeURIComponent(this.rule)}` : "";
      const page = await ask("GET", `/matches?latest=true&limit=${SHOWN}${rule}`);
      if (turn !== this.turn) return;
      this.matches = page.matches.reverse();
      this.waiting = [];
      this.draw();
      listen(page.next, rule, () => turn === this.turn, (matches) => this.take(matches));
    } catch { setTimeout(() => { if (turn === this.turn) this.restart(); }, 2000); }
  }

  name(names) {
    const select = by("feed-rule");
    const known = [...select.options].slice(1).map((option) => option.value);
    if (known.join() === names.join()) return;
    select.replaceChildren(make("option", { value: "" }, "all rules"), ...names.map((name) => make("option", { value: name }, name)));
    if (this.rule && !names.includes(this.rule)) { this.rule = ""; this.restart(); }
    select.value = this.rule;
  }

  take(matches) {
    this.waiting.push(...matches);
    if (this.waiting.length > SHOWN) this.waiting.splice(0, this.waiting.length - SHOWN);
    if (!this.paused && !this.drawing) {
      this.drawing = true;
      setTimeout(() => { this.drawing = false; if (!this.paused) this.flush(); }, 250);
    }
  }

  flush() {
    const fresh = this.waiting.reverse();
    this.waiting = [];
    this.matches = [...fresh, ...this.matches].slice(0, SHOWN);
    const list = by("feed");
    const wanted = fresh.filter((match) => this.wants(match));
    list.prepend(...wanted.map((match) => this.row(match, true)));
    while (list.children.length > SHOWN) list.lastElementChild.remove();
    by("feed-empty").hidden = list.children.length > 0;
  }

  wants(match) {
    return !this.rule || match.rule === this.rule || match.query === this.rule;
  }

  draw() {
    const rows = this.matches.filter((match) => this.wants(match)).map((match) => this.row(match, false));
    by("feed").replaceChildren(...rows);
    by("feed-empty").hidden = rows.length > 0;
  }

  row(match, fresh) {
    const marker = match.type === "Marker";
    const what = marker ? `range ${match.range} begins` : summary(match.attributes) || match.parts.map((part) => part.type).join(", ");
    const button = make("button", { "aria-current": String(match.number === this.chosen), onclick: () => this.why(match, button) },
      make("span", { class: `badge ${marker ? "marker" : ""}` }, match.query ?? match.rule),
      make("span", { class: "what" }, marker || !match.query ? what : `${match.type}: ${what}`),
      make("span", { class: "when" }, clock(match.ts)));
    return make("li", { class: fresh ? "fresh" : "", "data-number": match.number }, button);
  }

  async why(match, button) {
    this.chosen = match.number;
    for (const other of by("feed").querySelectorAll("[aria-current=true]")) other.setAttribute("aria-current", "false");
    button.setAttribute("aria-current", "true");
    const panel = by("why");
    try {
      const response = await ask("GET", `/matches/${match.number}/why`);
      if (this.chosen === match.number) panel.replaceChildren(...explanation(response));
    } catch (error) {
      panel.replaceChildren(make("h2", {}, "Why"), make("p", { class: "empty" }, error.message));
    }
    if (matchMedia("(max-width: 900px)").matches) panel.scrollIntoView({ behavior: "smooth", block: "start" });
  }
}

function explanation(response) {
  const { match, rule, parts, checks, note } = response;
  const nodes = [make("h2", {}, `Why ${match.type} at ${clock(match.ts)}`)];
  const facts = { ...match.attributes, ...(match.query ? { query: match.query, range: match.range } : {}) };
  nodes.push(make("dl", {}, ...Object.entries(facts).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, String(value))])));
  if (parts.length) {
    nodes.push(timeline(parts));
    const rows = parts.map((part) => make("tr", {}, make("td", {}, part.role), make("td", {}, clock(part.ts)), make("td", {}, summary(part.attributes) || "–")));
    nodes.push(make("table", {}, make("thead", {}, make("tr", {}, ...["event", "time", "attributes"].map((name) => make("th", {}, name)))), make("tbody", {}, ...rows)));
  } else nodes.push(make("p", { class: "empty" }, match.type === "Marker" ? "A marker precedes the matches of a range." : "This match has no single events."));
  nodes.push(...checkList(checks));
  if (note) nodes.push(make("p", { class: "note" }, note));
  nodes.push(make("pre", {}, rule ? rule.text.trim() : "The rule is no longer deployed."));
  return nodes;
}

// The check of each clause.
function checkList(checks) {
  const nodes = [];
  checks.forEach((check, k) => {
    if (k === 0 || checks[k - 1].clause !== check.clause) nodes.push(make("p", { class: "clause mono" }, check.clause), make("ul", { class: "clauses" }));
    const what = check.asked === check.clause ? check.found : `${check.asked}: ${check.found}`;
    nodes.at(-1).append(make("li", { class: check.holds ? "" : "failed" }, what));
  });
  return nodes;
}

// Explain why an event did not start a match.
export class WhyNot {
  constructor() {
    this.rules = [];
    by("whynot-rule").addEventListener("change", () => this.list());
    by("whynot").addEventListener("toggle", () => this.list());
  }

  name(rules) {
    const tesla = rules.filter((rule) => rule.language === "tesla").map((rule) => rule.id);
    if (tesla.join() === this.rules.join()) return;
    this.rules = tesla;
    by("whynot-rule").replaceChildren(...tesla.map((name) => make("option", { value: name }, name)));
    this.list();
  }

  async list() {
    const rule = by("whynot-rule").value;
    if (!by("whynot").open || !rule) return;
    const graph = await ask("GET", "/graph");
    const node = graph.nodes.find((one) => one.column === 3 && one.title === rule);
    const filters = graph.links.filter(([, to]) => to === node?.id).map(([from]) => from).filter((from) => from.startsWith("1-"));
    const types = graph.links.filter(([, to]) => filters.includes(to)).map(([from]) => graph.nodes.find((one) => one.id === from));
    const type = types.find((one) => one?.column === 0)?.title;
    const events = type ? await ask("GET", `/events?type=${encodeURIComponent(type)}&limit=30`) : [];
    by("whynot-events").replaceChildren(...events.map((event) => make("li", {}, make("button", { onclick: () => this.explain(rule, event) },
      make("span", { class: "badge marker" }, event.type), make("span", { class: "what" }, summary(event.attributes)), make("span", { class: "when" }, clock(event.ts))))));
    by("whynot-empty").hidden = events.length > 0;
  }

  async explain(rule, event) {
    const panel = by("why");
    try {
      const reasons = await ask("POST", "/why-not", { rule, ts_us: event.ts_us, id: event.id });
      panel.replaceChildren(...reasons.flatMap((reason) => [make("h2", {}, `${reason.matched ? "Why" : "Why not"} ${rule} at ${clock(event.ts)}`), make("p", { class: "note mono" }, reason.anchor), ...checkList(reason.checks)]));
    } catch (error) {
      panel.replaceChildren(make("h2", {}, "Why not"), make("p", { class: "empty" }, error.message));
    }
    panel.scrollIntoView({ behavior: "smooth", block: "nearest" });
  }
}

// The last dead letters, newest first, with their reasons.
export class DeadLetters {
  constructor() {
    by("dead").addEventListener("toggle", () => this.refresh());
  }

  async refresh() {
    if (!by("dead").open) return;
    const { dead_letters: letters } = await ask("GET", "/dead-letters?latest=true&limit=50");
    by("dead-letters").replaceChildren(...letters.reverse().map((letter) => make("li", { title: letter.event },
      make("span", { class: "badge marker" }, letter.type ?? "?"), make("span", { class: "what" }, letter.reason), make("span", { class: "what mono" }, cut(letter.event, 80)))));
    by("dead-empty").hidden = letters.length > 0;
  }
}

function timeline(parts) {
  const times = parts.map((part) => micros(part.ts));
  const low = Math.min(...times), high = Math.max(...times), span = high - low || 1;
  const width = Math.min(520, Math.max(280, by("why").clientWidth - 26)), left = 60, right = 60, base = 62;
  const x = (time) => (high === low ? width / 2 : left + ((time - low) / span) * (width - left - right));
  const marks = parts.map((part, k) => {
    const at = x(times[k]), up = k % 2 === 0;
    return make("g", {},
      make("line", { x1: at, y1: base, x2: at, y2: up ? 34 : 90, stroke: "var(--soft)" }),
      make("circle", { cx: at, cy: base, r: 6, fill: k === 0 ? "var(--ember)" : "var(--blue)" }),
      make("text", { x: at, y: up ? 26 : 104, "text-anchor": "middle", "font-size": 13, fill: "var(--ink)" }, cut(part.role === part.type ? part.type : `${part.role} (${part.type})`, 22)));
  });
  const long = span >= 1e6 ? `${(span / 1e6).toFixed(1)} s` : `${(span / 1e3).toFixed(1)} ms`;
  return make("svg", { viewBox: `0 0 ${width} 118`, role: "img", "aria-label": `The events of this match, over ${long}` },
    make("line", { x1: 20, y1: base, x2: width - 20, y2: base, stroke: "var(--line)", "stroke-width": 3 }),
    ...(high > low ? [make("text", { x: (x(low) + x(high)) / 2, y: base - 8, "text-anchor": "middle", "font-size": 11, fill: "var(--soft)" }, long)] : []),
    ...marks);
}
