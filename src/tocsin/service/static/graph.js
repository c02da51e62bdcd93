// The shared operator graph: types, filters, buffers, rules, composite types, and rates.
import { count, cut, make } from "./dom.js";

const WIDTH = 188, HEIGHT = 42, GAP_X = 48, GAP_Y = 12, HEAD = 34, MARGIN = 6;
let currentShape = "";

export function drawGraph(container, graph) {
  const shape = JSON.stringify([graph.nodes.map((node) => [node.id, node.title, node.detail, node.shared]), graph.links]);
  if (shape === currentShape && container.firstChild) {
    for (const node of graph.nodes) {
      const text = container.querySelector(`[data-rate="${node.id}"]`);
      if (text) text.textContent = node.per_s === null ? "" : `${count(node.per_s)}/s`;
    }
    return;
  }
  currentShape = shape;
  if (!graph.nodes.length) {
    container.replaceChildren(make("p", { class: "empty" }, "Nothing is deployed yet."));
    return;
  }
  const columns = graph.columns.map((_, column) => graph.nodes.filter((node) => node.column === column));
  const most = Math.max(...columns.map((nodes) => nodes.length));
  const spots = new Map();
  columns.forEach((nodes, column) => nodes.forEach((node, row) => spots.set(node.id, [MARGIN + column * (WIDTH + GAP_X), HEAD + (row + (most - nodes.length) / 2) * (HEIGHT + GAP_Y)])));
  const links = graph.links.map(([from, to]) => {
    const [[x1, y1], [x2, y2]] = [spots.get(from), spots.get(to)];
    const back = x2 <= x1, bend = back ? GAP_X * 2 : GAP_X;
    const [sx, sy, ex, ey] = [x1 + WIDTH, y1 + HEIGHT / 2, x2, y2 + HEIGHT / 2];
    return make("path", { class: "link", "data-from": from, "data-to": to, "stroke-dasharray": back ? "5 4" : null, d: `M${sx} ${sy} C${sx + bend} ${sy} ${ex - bend} ${ey} ${ex} ${ey}` });
  });
  const light = (id, on) => links.forEach((link) => link.classList.toggle("lit", on && (link.dataset.from === id || link.dataset.to === id)));
  const nodes = graph.nodes.map((node) => {
    const [x, y] = spots.get(node.id);
    return make("g", { class: "node", tabindex: 0, role: "img", "aria-label": `${graph.columns[node.column]}: ${node.title}, ${node.detail}`, onmouseenter: () => light(node.id, true), onmouseleave: () => light(node.id, false), onfocus: () => light(node.id, true), onblur: () => light(node.id, false) },
      make("title", {}, `${node.title}: ${node.detail}`),
      make("rect", { class: `node ${node.shared ? "shared" : ""}`, x, y, width: WIDTH, height: HEIGHT, rx: 8 }),
      make("text", { class: "title", x: x + 10, y: y + 17 }, cut(node.title, 18)),
      make("text", { class: "small", x: x + 10, y: y + 33 }, cut(node.detail, 30)),
      make("text", { class: "rate", x: x + WIDTH - 10, y: y + 17, "data-rate": node.id }, node.per_s === null ? "" : `${count(node.per_s)}/s`));
  });
  const heads = graph.columns.map((name, column) => make("text", { class: "head", x: MARGIN + column * (WIDTH + GAP_X), y: 18 }, name + (graph.more[column] ? ` (and ${graph.more[column]} more)` : "")));
  const width = 2 * MARGIN + graph.columns.length * WIDTH + (graph.columns.length - 1) * GAP_X, height = HEAD + most * (HEIGHT + GAP_Y);
  container.replaceChildren(make("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, ...heads, ...links, ...nodes));
}
