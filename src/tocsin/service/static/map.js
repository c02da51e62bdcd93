// Where the ranges of moving queries are, over the last events with coordinates. North is up.
import { by, make } from "./dom.js";

const COLOURS = ["var(--blue)", "var(--green)", "var(--gold)", "var(--red)", "var(--soft)"];
const WIDTH = 900, HEIGHT = 560, METRES_PER_DEGREE = 111_320;
let frame = null;

export function drawMap({ ranges, places }) {
  const earth = ranges[0]?.space === "wgs84";
  const scale = (range) => (earth ? [1 / (METRES_PER_DEGREE * Math.cos((range.north * Math.PI) / 180)), 1 / METRES_PER_DEGREE] : [1, 1]);
  const xs = places.map((one) => one.east), ys = places.map((one) => one.north);
  for (const range of ranges) {
    const [kx, ky] = scale(range), extent = extentOf(range.shape);
    xs.push(range.east - extent * kx, range.east + extent * kx);
    ys.push(range.north - extent * ky, range.north + extent * ky);
  }
  if (!xs.length) {
    by("map-note").textContent = "";
    by("map-legend").replaceChildren();
    by("map").replaceChildren(make("p", { class: "empty" }, "No moving query is deployed, and no event has coordinates (x and y, or lon and lat)."));
    return;
  }
  const box = [Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)];
  frame = frame && inside(box, frame) ? frame : grown(box);
  const [west, south, east, north] = frame;
  const stretch = earth ? Math.cos(((south + north) / 2 / 180) * Math.PI) : 1;
  const unit = Math.min(WIDTH / ((east - west) * stretch || 1), HEIGHT / (north - south || 1));
  const x = (one) => WIDTH / 2 + (one - (west + east) / 2) * stretch * unit, y = (one) => HEIGHT / 2 - (one - (south + north) / 2) * unit;
  const types = [...new Set(places.map((one) => one.type))].sort();
  const newest = Math.max(...places.map((one) => one.ts_us), 0);
  const dots = places.map((one) => make("circle", { cx: x(one.east).toFixed(1), cy: y(one.north).toFixed(1), r: 3.5, fill: COLOURS[types.indexOf(one.type) % COLOURS.length], opacity: Math.max(0.12, 1 - (newest - one.ts_us) / 10e6).toFixed(2) }));
  const shapes = ranges.map((range) => {
    const [kx, ky] = scale(range), cx = x(range.east), cy = y(range.north);
    const px = (metres) => metres * kx * stretch * unit, py = (metres) => metres * ky * unit;
    let shape;
    if (range.shape.circle_m) shape = make("circle", { class: "range", cx, cy, r: py(range.shape.circle_m) });
    else if (range.shape.rectangle_m) {
      const [w, h] = range.shape.rectangle_m;
      shape = make("rect", { class: "range", x: cx - px(w) / 2, y: cy - py(h) / 2, width: px(w), height: py(h) });
    } else shape = make("polygon", { class: "range", points: range.shape.polygon_m.map(([e, n]) => `${cx + px(e)},${cy - py(n)}`).join(" ") });
    return make("g", {}, make("title", {}, `${range.query}, range ${range.range}`), shape, make("circle", { cx, cy, r: 4, fill: "var(--ember)" }), make("text", { x: cx + 8, y: cy - 8, class: "title" }, range.query));
  });
  by("map").replaceChildren(make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${ranges.length} ranges and the last ${places.length} events` }, ...dots, ...shapes));
  by("map-note").textContent = `${ranges.length} ${ranges.length === 1 ? "range" : "ranges"}, the last ${places.length} events with coordinates`;
  by("map-legend").replaceChildren(...types.map((type, k) => { const mark = make("i"); mark.style.background = COLOURS[k % COLOURS.length]; return make("li", {}, mark, type); }));
}

const extentOf = (shape) => shape.circle_m ?? (shape.rectangle_m ? Math.max(...shape.rectangle_m) / 2 : Math.max(...shape.polygon_m.flat().map(Math.abs)));
const grown = ([west, south, east, north]) => { const dx = (east - west) * 0.06 || 1e-6, dy = (north - south) * 0.06 || 1e-6; return [west - dx, south - dy, east + dx, north + dy]; };
const inside = (box, frame) => box[0] >= frame[0] && box[1] >= frame[1] && box[2] <= frame[2] && box[3] <= frame[3] && box[2] - box[0] > (frame[2] - frame[0]) * 0.5;
