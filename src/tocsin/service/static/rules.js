// The deployed rules, and an editor that checks the text as you type.
import { autocompletion, bracketMatching, completionKeymap, defaultKeymap, drawSelection, EditorState, EditorView, highlightActiveLine, HighlightStyle, history, historyKeymap, keymap, lineNumbers, placeholder, StreamLanguage, syntaxHighlighting, linter, lintGutter, tags } from "./vendor/codemirror.js";
import { ask } from "./service.js";
import { by, clock, count, make, summary } from "./dom.js";

const WORDS = new Set(("define from and or not where rule event each last first within between consuming request on if notify mode at every interest of around range space lifetime update semantics " +
  "select insert into group by having as stream table window partition with begin end output min sec ms s h d min. count avg sum max join unidirectional rectangle circle polygon recent chronological continuous cumulative").split(" "));
const START = "# Which combination of events matters? Smoke, and hot air in the same area before it:\ndefine  Fire(area: string, temp: double)\nfrom    Smoke(area=$a) and\n        last Temp(area=$a and value>45) within 5 min from Smoke\nwhere   area = Smoke.area, temp = Temp.value\n";

const language = StreamLanguage.define({
  token(stream) {
    if (stream.match(/^(#|--).*/)) return "comment";
    if (stream.match(/^"[^"]*"?/) || stream.match(/^'[^']*'?/)) return "string";
    if (stream.match(/^\d+(\.\d+)?/)) return "number";
    if (stream.match(/^[$@]\w+/)) return "variableName";
    const word = stream.match(/^[A-Za-z_]\w*/);
    if (word) return WORDS.has(word[0].toLowerCase()) ? "keyword" : /^[A-Z]/.test(word[0]) ? "typeName" : null;
    stream.next();
    return null;
  },
});
const colours = HighlightStyle.define([
  { tag: tags.keyword, color: "var(--ember)", fontWeight: "600" },
  { tag: tags.typeName, color: "var(--blue)" },
  { tag: tags.variableName, color: "var(--gold)" },
  { tag: [tags.string, tags.number], color: "var(--green)" },
  { tag: tags.comment, color: "var(--soft)", fontStyle: "italic" },
]);

export class Rules {
  constructor(changed) {
    this.changed = changed;
    this.known = null;
    this.names = [];
    this.types = {};
    this.chosen = null;
    this.view = new EditorView({
      parent: by("editor"),
      doc: START,
      extensions: [
        lineNumbers(), history(), drawSelection(), bracketMatching(), highlightActiveLine(), lintGutter(),
        language, syntaxHighlighting(colours), placeholder("define …"),
        linter((view) => this.check(view.state.doc.toString()), { delay: 250 }),
        autocompletion({ override: [(context) => this.complete(context)] }),
        keymap.of([{ key: "Mod-Enter", run: () => { this.deploy(); return true; } }, ...defaultKeymap, ...historyKeymap, ...completionKeymap]),
        EditorView.contentAttributes.of({ "aria-label": "The text of the rule", spellcheck: "false" }),
        EditorView.lineWrapping,
      ],
    });
    by("rule-new").addEventListener("click", () => this.choose(null));
    by("deploy").addEventListener("click", () => this.deploy());
    by("dry-run").addEventListener("click", () => this.dryRun());
    by("remove").addEventListener("click", () => this.remove());
    by("language").addEventListener("change", () => this.check(this.text));
  }

  get text() { return this.view.state.doc.toString(); }
  get body() { return { text: this.text, language: by("language").value || null }; }

  verdict(text, kind = "") {
    by("verdict").textContent = text;
    by("verdict").className = `verdict ${kind}`;
  }

  async check(text) {
    by("deploy").disabled = by("dry-run").disabled = true;
    if (!text.trim()) { this.verdict("Write a rule; it is checked as you type."); return []; }
    let response;
    try { response = await ask("POST", "/rules/check", { text, language: by("language").value || null }); }
    catch (error) { this.verdict(error.message, "bad"); return []; }
    if (text !== this.text) return [];
    if (response.ok) {
      const again = response.replaces.length ? ` It replaces ${response.replaces.join(", ")}.` : "";
      this.verdict(`Valid: ${response.rules.join(", ")} (${response.language}).${again}`, "good");
      by("deploy").disabled = by("dry-run").disabled = false;
      by("deploy").textContent = response.replaces.length ? "Replace" : "Deploy";
      return [];
    }
    const { message, hint, line, column, start, end } = response.error;
    this.verdict((line ? `Line ${line}, column ${column}: ` : "") + message + (hint ? `\n${hint}` : ""), "bad");
    if (start === null) return [];
    const size = this.view.state.doc.length;
    const from = Math.min(start, Math.max(0, size - 1));
    return [{ from, to: Math.min(size, Math.max(end, from + 1)), severity: "error", message: hint ? `${message}\n${hint}` : message }];
  }

  complete(context) {
    const word = context.matchBefore(/\w+/);
    if (!word && !context.explicit) return null;
    const attributes = new Set(Object.values(this.types).flatMap((type) => Object.keys(type)));
    const options = [
      ...Object.keys(this.types).map((label) => ({ label, type: "type", detail: summary(this.types[label]) })),
      ...[...attributes].map((label) => ({ label, type: "property" })),
      ...[...WORDS].map((label) => ({ label, type: "keyword" })),
    ];
    return { from: word ? word.from : context.pos, options };
  }

  async deploy() {
    if (by("deploy").disabled) return;
    try {
      const deployed = await ask("POST", "/rules", { ...this.body, replace: true });
      this.verdict(`Deployed: ${deployed.map((rule) => rule.id).join(", ")}. It processes events from now on.`, "good");
      this.chosen = deployed[0].id;
      await this.refresh();
      this.changed();
    } catch (error) { this.verdict(error.message, "bad"); }
  }

  async dryRun() {
    const container = by("dry");
    container.replaceChildren(make("p", { class: "note" }, "Running over the last events …"));
    try {
      const response = await ask("POST", "/rules/dry-run", this.body);
      const rows = response.sample.slice(-20).reverse().map((match) => make("li", {},
        make("span", { class: "when" }, clock(match.ts)), make("span", { class: "badge" }, match.rule), make("span", {}, summary(match.attributes))));
      container.replaceChildren(make("p", {}, make("b", {}, `${count(response.matches)} ${response.matches === 1 ? "match" : "matches"}`), ` in the last ${count(response.events)} events.`), make("ol", {}, ...rows));
    } catch (error) { container.replaceChildren(make("p", { class: "verdict bad" }, error.message)); }
  }

  async remove() {
    if (!this.chosen) return;
    const removed = this.chosen;
    try {
      await ask("DELETE", `/rules/${encodeURIComponent(removed)}`);
      this.choose(null);
      this.verdict(`Removed: ${removed}. Its matches stay.`, "good");
      await this.refresh();
      this.changed();
    } catch (error) { this.verdict(error.message, "bad"); }
  }

  choose(rule) {
    this.chosen = rule?.id ?? null;
    by("dry").replaceChildren();
    by("language").value = rule?.language ?? "";
    this.view.dispatch({ changes: { from: 0, to: this.view.state.doc.length, insert: rule ? rule.text.replace(/^\n+/, "") : START } });
    this.draw();
    if (!rule) this.view.focus();
  }

  async refresh() {
    this.known = await ask("GET", "/rules");
    this.names = this.known.map((rule) => rule.id);
    try { this.types = await ask("GET", "/types"); } catch { /* the token lacks the role */ }
    this.draw();
  }

  draw() {
    by("editor-title").textContent = this.chosen ?? "New rule";
    by("remove").hidden = !this.names.includes(this.chosen);
    const list = by("rules");
    const focused = list.contains(document.activeElement) ? document.activeElement.closest("li")?.dataset.id : null;
    list.replaceChildren(...(this.known ?? []).map((rule) => make("li", { "data-id": rule.id },
      make("button", { "aria-current": String(rule.id === this.chosen), onclick: () => this.choose(rule) },
        make("span", { class: "badge" }, rule.id),
        make("span", { class: "what" }, `${rule.language}, ${count(rule.matches)} ${rule.matches === 1 ? "match" : "matches"}`),
        make("span", { class: "when" }, `${count(rule.per_s)}/s`)))));
    if (focused) list.querySelector(`li[data-id="${CSS.escape(focused)}"] button`)?.focus();
    by("rules-empty").hidden = this.names.length > 0;
  }
}
