// Charts of the event and match rates of the last minutes.
import uPlot from "./vendor/uplot.js";
import { by, count } from "./dom.js";

const POINTS = 180;
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export class Rates {
  constructor() {
    this.data = [[], [], []];
    this.charts = [];
    addEventListener("themed", () => this.draw());
    addEventListener("resize", () => this.size());
    this.seen = null;
  }

  take(status) {
    const now = Date.now() / 1000;
    if (this.seen) {
      const [events, matches, at] = this.seen;
      const span = Math.max(now - at, 0.2);
      this.data[0].push(now);
      this.data[1].push(Math.max(0, (status.events - events) / span));
      this.data[2].push(Math.max(0, (status.matches - matches) / span));
      for (const column of this.data) if (column.length > POINTS) column.shift();
    }
    this.seen = [status.events, status.matches, now];
    if (!this.charts.length) this.draw();
    this.charts.forEach((chart, k) => chart.setData([this.data[0], this.data[k + 1]]));
  }

  draw() {
    for (const chart of this.charts) chart.destroy();
    this.charts = [["chart-events", "--blue"], ["chart-matches", "--ember"]].map(([id, name], k) => {
      const container = by(id);
      const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
      return new uPlot({
        width: Math.max(container.clientWidth, 100), height: 120, padding: [10, 8, 0, 0], legend: { show: false }, cursor: { show: false },
        scales: { x: { time: true, range: (_, low, high) => [Math.min(low ?? 0, (high ?? 0) - 60), high ?? 0] }, y: { range: (_, low, high) => [0, Math.max(high * 1.15, 1)] } },
        axes: [{ ...axis, space: 80, size: 26, values: (_, ticks) => ticks.map((tick) => new Date(tick * 1000).toTimeString().slice(0, 8)) }, { ...axis, size: 46, space: 26, values: (_, ticks) => ticks.map((tick) => count(tick)) }],
        series: [{}, { stroke: colour(name), width: 2, fill: `${colour(name)}22`, points: { show: false } }],
      }, [this.data[0], this.data[k + 1]], container);
    });
  }

  size() {
    this.charts.forEach((chart) => chart.setSize({ width: Math.max(chart.root.parentElement.clientWidth, 100), height: 120 }));
  }
}
