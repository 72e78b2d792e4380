/** A chart of lines by round or simulated time: what is drawn. How it answers pointer and keys is in gestures.js. */

import { domainOf, frameOf, bottomAxis, scale, valueAxis, valueTicks } from "./axes.js";
import { html, svg, swatch } from "./dom.js";
import { shown, shownSpread } from "./format.js";
import { listen } from "./gestures.js";
import { smoothed } from "./series.js";
import { hideTip, showTip } from "./tip.js";

const RESIZED = new ResizeObserver((entries) => entries.forEach((entry) => entry.target.chart.draw()));

const CROWD = 6; // more lines than this: faint bands, and the one that is pointed at stands out
const EDGE = 2; // pixels: a line along the frame is not cut in half

/** A figure with its caption; `update` gives it lines. */
export class LineChart {
  constructor(caption) {
    this.picture = svg("svg", { class: "chart", tabindex: "0", role: "img" });
    this.empty = html("p", { class: "empty", hidden: true });
    this.element = html("figure", { class: "card" }, caption, this.picture, this.empty);
    this.picture.chart = this;
    this.place = null; // on the x axis, where the crosshair is
    RESIZED.observe(this.picture);
    listen(this);
  }

  /**
   * `spec`: lines, axis (of xaxis.js), title, data, label, unit, log, zoom ([first, last] or null), smooth, empty;
   * `gap` where the band is what lies between its two lines; `fit`, all lines that the axes have room for;
   * `window`, the number of rounds that values are means of already.
   */
  update(spec) {
    this.spec = spec;
    this.place = null;
    const bare = !spec.lines.length;
    this.empty.hidden = !bare;
    this.empty.textContent = spec.empty;
    this.picture.classList.toggle("crowded", spec.lines.length > CROWD);
    this.picture.toggleAttribute("hidden", bare);
    this.picture.setAttribute(
      "aria-label",
      `${spec.label} by ${spec.axis.label}. Arrow keys move through the ${spec.axis.places}, + and − zoom.`,
    );
    this.places = [...new Set(spec.lines.flatMap((line) => line.at))].sort((a, b) => a - b);
    this.drawn = spec.lines.map((line) => drawnLine(line, spec));
    this.fitted = (spec.fit ?? spec.lines).map((line) => drawnLine(line, spec));
    this.draw();
  }

  draw() {
    const { width, height } = this.picture.getBoundingClientRect();
    if (!this.spec?.lines.length || width < 80) return;
    const { spec } = this;
    const reached = spec.zoom && this.inside(spec.zoom).length > 1; // another data set may end before it
    const ends = this.fitted.flatMap((line) => [line.at[0], line.at.at(-1)]);
    this.span = reached ? spec.zoom : widened(Math.min(...ends), Math.max(...ends));
    const values = domainOf(this.visibleValues(), spec.unit, spec.log) ?? (spec.log ? [0.1, 1] : [0, 1]);
    const ticks = valueTicks(values, spec.unit, spec.log, 5);
    this.frame = frameOf(width, height, ticks);
    this.x = scale(this.span, [this.frame.left, this.frame.right]);
    this.y = scale(values, [this.frame.bottom, this.frame.top], spec.log);
    this.overlay = svg("g");
    const axes = [
      ...valueAxis(this.frame, ticks, this.y, spec.label, spec.unit),
      ...bottomAxis(this.frame, this.span, this.x, spec.axis),
    ];
    this.picture.replaceChildren(...axes, this.plot(), this.overlay);
  }

  visibleValues() {
    const [first, last] = this.span;
    const seen = [];
    for (const line of this.fitted) {
      line.at.forEach((place, at) => {
        if (place >= first && place <= last) seen.push(line.low[at], line.high[at]);
      });
    }
    const floor = ["share", "points"].includes(this.spec.unit) ? 0 : -Infinity;
    const positive = this.spec.log ? seen.filter((value) => value > 0) : seen;
    return positive.map((value) => Math.max(floor, value));
  }

  /** Bands and lines, cut off at the frame. */
  plot() {
    const { left, right, top, bottom } = this.frame;
    const [x, y, width, height] = [left - EDGE, top - EDGE, right - left + 2 * EDGE, bottom - top + 2 * EDGE];
    const inside = svg("svg", { x, y, width, height, viewBox: `${x} ${y} ${width} ${height}` });
    const spreads = this.drawn.filter((line) => line.std).map((line) => this.band(line, line.low, line.high));
    const [first, second] = this.drawn;
    const bands = this.spec.gap ? [this.band(first, second.middle, first.middle)] : spreads;
    this.paths = this.drawn.map((line) => this.path(line));
    inside.append(...bands, ...this.paths);
    return inside;
  }

  path(line) {
    const kind = line.single ? "line single" : "line";
    const points = this.points(line.at, line.middle);
    return svg("path", {
      class: `${kind} ${line.style.tone}`,
      "stroke-dasharray": line.style.dash,
      d: points.length === 1 ? `M${points[0]}h0.1` : `M${points.join("L")}`,
    });
  }

  /** What lies between two values at each place of a line. */
  band(line, low, high) {
    const around = [...this.points(line.at, high), ...this.points(line.at, low).reverse()];
    return svg("path", { class: `band ${line.style.tone}`, d: `M${around.join("L")}Z` });
  }

  /** The pixels of a line, with the corners of a staircase where values hold until the next one. */
  points(at, values) {
    const lowest = this.spec.log ? Number.MIN_VALUE : -Infinity;
    const xs = at.map((place) => this.x(place).toFixed(1));
    const ys = values.map((value) => this.y(Math.max(lowest, value)).toFixed(1));
    const corner = (step) => (this.spec.axis.stepped && step > 0 ? [`${xs[step]} ${ys[step - 1]}`] : []);
    return xs.flatMap((x, step) => [...corner(step), `${x} ${ys[step]}`]);
  }

  /** The places of any line between two, both included. */
  inside([first, last]) {
    return this.places.filter((place) => place >= first && place <= last);
  }

  /** The place that is measured nearest to a pixel. */
  placeAt(pixel) {
    const inside = this.inside(this.span);
    return inside.reduce(
      (best, place) => (Math.abs(this.x(place) - pixel) < Math.abs(this.x(best) - pixel) ? place : best),
      inside[0],
    );
  }

  /** Crosshair, dots and values at a place; the line nearest to `pixel` (if given) stands out. */
  point(place, pixel = null) {
    if (place == null) return this.unpoint();
    const { axis } = this.spec;
    this.place = place;
    const known = this.spec.lines.map((line, at) => ({ at, ...hitOf(line, place) })).filter((hit) => hit.index >= 0);
    known.sort((a, b) => b.value - a.value);
    const measured = known.filter((hit) => hit.exact || axis.stepped);
    const near = pixel == null ? null : nearest(measured, (hit) => Math.abs(this.y(hit.value) - pixel));
    this.paths.forEach((path, at) => path.classList.toggle("near", at === near?.at));
    this.picture.classList.toggle("pointed", near != null);
    this.cross(place, measured);
    const rows = known.map((hit) => [swatch(hit.line.style), labelAt(hit, axis), this.textAt(hit), hit === near]);
    return showTip(this.picture, axis.heading(place), rows, this.x(place), pixel ?? this.frame.top);
  }

  cross(place, hits) {
    const { top, bottom } = this.frame;
    const line = svg("line", { class: "cross", x1: this.x(place), x2: this.x(place), y1: top, y2: bottom });
    const inside = hits.map((hit) => ({ hit, y: this.y(hit.value) })).filter(({ y }) => y >= top && y <= bottom);
    const dots = inside.map(({ hit, y }) =>
      svg("circle", { class: `dot ${hit.line.style.tone}`, cx: this.x(place), cy: y, r: 4 }),
    );
    this.overlay.replaceChildren(line, ...dots);
  }

  unpoint() {
    this.place = null;
    this.overlay?.replaceChildren();
    this.picture.classList.remove("pointed");
    this.paths?.forEach((path) => path.classList.remove("near"));
    hideTip();
  }

  /** What a file of this chart holds; numbers are as measured, whether lines are smoothed or not, but for a window. */
  told() {
    const { title, data, axis, lines, window } = this.spec;
    const [head, own] = window ? [["mean over"], [window]] : [[], []];
    const rows = lines.flatMap((line) =>
      line.at.map((place, at) => {
        const runs = line.counts?.[at] ?? line.of;
        return [data, line.label, line.metric, place, line.values[at], line.std?.[at] ?? null, runs, ...own];
      }),
    );
    return {
      name: title,
      picture: this.picture,
      legend: lines.map((line) => [line.style, line.label]),
      table: [["data", "label", "metric", axis.name, "value", "std", "runs", ...head], ...rows],
    };
  }

  textAt({ line, index, value }) {
    return line.std ? shownSpread(this.spec.unit, value, line.std[index]) : shown(this.spec.unit, value);
  }
}

/** A line with what is drawn of it: middle, and the band from low to high, which is its own where there is no gap. */
function drawnLine(line, { smooth, gap }) {
  const around = (sign) => line.values.map((value, at) => value + sign * ((!gap && line.std?.[at]) || 0));
  return {
    ...line,
    middle: smoothed(line.values, smooth),
    low: smoothed(around(-1), smooth),
    high: smoothed(around(1), smooth),
  };
}

const widened = (first, last) => (first < last ? [first, last] : [first - 1, last + 1]);

/** The item with the least distance, or undefined. */
function nearest(items, distance) {
  return items.reduce((best, item) => (best === undefined || distance(item) < distance(best) ? item : best), undefined);
}

/** Where a line is at a place: measured there, or before it if it was measured after it as well; else index -1. */
function hitOf(line, place) {
  const after = line.at.findIndex((other) => other >= place);
  const exact = line.at[after] === place;
  const index = exact ? after : after - 1;
  return after < 0 ? { line, index: -1 } : { line, index, exact, value: line.values[index] };
}

/** The label says where not all runs of a group have a value, where it is of an earlier round, and the other axis. */
function labelAt({ line, index, exact }, axis) {
  const remarks = [];
  if (line.counts && line.counts[index] < line.of) remarks.push(`${line.counts[index]} of ${line.of} runs`);
  if (!exact && !axis.stepped) remarks.push(`round ${line.at[index]}`);
  if (Number.isFinite(line.others[index][0])) remarks.push(axis.other(line.others[index]));
  return remarks.length ? `${line.label} (${remarks.join(", ")})` : line.label;
}
