/** The picture of one round's users: accuracy under z and of the own model above, a bar for each user below. */

import { domainOf, frameOf, linearTicks, scale, valueAxis, valueTicks } from "./axes.js";
import { html, svg } from "./dom.js";
import { isBetter, judged, hasBars, longName, tipRows } from "./userrows.js";
import { mean } from "./series.js";
import { state } from "./state.js";
import { hideTip, showTip } from "./tip.js";

const BAR_SHARE = 0.32; // of the picture's height
const RESIZED = new ResizeObserver((entries) => entries.forEach((entry) => entry.target.chart.draw()));

/** A figure that `update` fills. `onPoint(position or null)` is called while the pointer is on a user. */
export class UserChart {
  constructor(buttons, onPoint) {
    this.onPoint = onPoint;
    this.picture = svg("svg", { class: "chart users", tabindex: "0", role: "img" });
    this.key = html("div", { class: "key" });
    this.element = html("figure", { class: "card" }, html("figcaption", {}, this.key, buttons), this.picture);
    this.picture.chart = this;
    this.at = null;
    RESIZED.observe(this.picture);
    this.listen();
  }

  update(rows, columns, ownLabel, title) {
    Object.assign(this, { rows, columns, ownLabel, title, at: null });
    this.bars = hasBars(state.by) ? state.by : "size";
    this.key.replaceChildren(...keyOf(ownLabel));
    this.picture.setAttribute(
      "aria-label",
      `Accuracy of ${rows.length} users by ${longName(state.by)}. Arrow keys move from user to user.`,
    );
    this.draw();
  }

  draw() {
    const { width, height } = this.picture.getBoundingClientRect();
    if (!this.rows?.length || width < 80) return;
    const split = height * (1 - BAR_SHARE) - 24;
    const range = this.range();
    const ticks = valueTicks(range, judged().unit, false, 5);
    const values = this.rows.map((row) => row[this.bars]).filter(Number.isFinite);
    const barTicks = this.barScale(values);
    this.frame = frameOf(width, height, [...ticks, ...barTicks.ticks]);
    const upper = { ...this.frame, bottom: split };
    const lower = { ...this.frame, top: split + 16 };
    this.step = (this.frame.right - this.frame.left) / this.rows.length;
    this.overlay = svg("g");
    this.picture.replaceChildren(
      this.overlay,
      ...this.values(upper, ticks, range),
      ...this.barParts(lower, barTicks),
      ...this.userAxis(),
    );
  }

  x(position) {
    return this.frame.left + (position + 0.5) * this.step;
  }

  /** Bars start at 0; on a logarithmic axis, where values differ much, a little below the smallest. */
  barScale(values) {
    const positive = values.filter((value) => value > 0);
    const log = positive.length === values.length && Math.max(...positive, 0) > 20 * Math.min(...positive, Infinity);
    const domain = domainOf(values, "", log) ?? [0, 1];
    const range = log ? [domain[0] / 1.5, domain[1]] : [Math.min(0, domain[0]), domain[1]];
    const ticks = valueTicks(range, "", log, 3);
    const powers = ticks.filter(({ tick }) => Number.isInteger(Math.log10(tick)));
    return { log, range, ticks: powers.length > 1 ? powers : ticks };
  }

  /** Shares go from 0 to 100 %, other measures from 0 or below it to the largest. */
  range() {
    if (judged().unit === "share") return [0, 1];
    const known = this.rows.flatMap((row) => [row.acc_global, row.own]).filter(Number.isFinite);
    return [Math.min(0, ...known), Math.max(...known, Number.MIN_VALUE)];
  }

  values(frame, ticks, range) {
    const y = scale(range, [frame.bottom, frame.top + 4]);
    const radius = Math.max(1.8, Math.min(5, this.step / 3));
    const parts = this.rows.flatMap((row, at) => marks(row, this.x(at), y, radius));
    const known = this.rows.map((row) => row.acc_global).filter(Number.isFinite);
    const middle = known.length
      ? [svg("line", { class: "cross", x1: frame.left, x2: frame.right, y1: y(mean(known)), y2: y(mean(known)) })]
      : [];
    return [...valueAxis(frame, ticks, y, judged().label, judged().unit), ...middle, ...parts];
  }

  barParts(frame, { log, range, ticks }) {
    const y = scale(range, [frame.bottom, frame.top], log);
    const width = Math.max(1, Math.min(26, this.step * 0.7));
    const floor = log ? frame.bottom : y(0);
    const bars = this.rows
      .map((row, at) => ({ at, value: row[this.bars] }))
      .filter(({ value }) => Number.isFinite(value));
    const shapes = bars.map(({ at, value }) =>
      svg("rect", {
        class: "bar",
        x: this.x(at) - width / 2,
        width,
        y: Math.min(y(value), floor),
        height: Math.max(1, Math.abs(floor - y(value))),
      }),
    );
    return [...valueAxis(frame, ticks, y, log ? `${longName(this.bars)}, log` : longName(this.bars), ""), ...shapes];
  }

  /** Ids below the users where there is room, else the number of users. */
  userAxis() {
    const { left, right, bottom } = this.frame;
    const longest = Math.max(...this.rows.map((row) => String(row.client).length));
    const every = Math.ceil((7.5 * longest + 6) / this.step);
    const named = every <= 2;
    const shownAt = named
      ? this.rows.map((_, at) => at).filter((at) => at % every === 0)
      : linearTicks(1, this.rows.length, 6, 1).ticks.map((tick) => tick - 1);
    const texts = shownAt.map((at) =>
      svg("text", {
        x: this.x(at),
        y: bottom + 16,
        "text-anchor": "middle",
        text: named ? this.rows[at].client : (at + 1).toLocaleString("en"),
      }),
    );
    const order = `${state.rising === "1" ? "rising" : "falling"} ${longName(state.by)}`;
    const name = svg("text", {
      class: "name",
      x: (left + right) / 2,
      y: bottom + 34,
      "text-anchor": "middle",
      text: named ? `client id, by ${order}` : `users, by ${order}`,
    });
    return [svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }), ...texts, name];
  }

  listen() {
    this.picture.addEventListener(
      "pointermove",
      (event) => this.frame && this.point(this.positionAt(event.offsetX), event.offsetY),
    );
    this.picture.addEventListener("pointerleave", () => this.point(null));
    this.picture.addEventListener("blur", () => this.point(null));
    this.picture.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      if (event.key === "Escape") this.point(null);
      if (steps === undefined || !this.frame) return;
      event.preventDefault();
      this.point(Math.max(0, Math.min(this.rows.length - 1, (this.at ?? -1) + steps)));
    });
  }

  positionAt(pixel) {
    return Math.max(0, Math.min(this.rows.length - 1, Math.floor((pixel - this.frame.left) / this.step)));
  }

  /** What a file of this chart holds. */
  told() {
    const names = this.columns.map(({ name }) => name);
    const legend = [[{ tone: "tone-0" }, "server's model z"], [{ tone: "tone-1" }, this.ownLabel]];
    const table = [names, ...this.rows.map((row) => names.map((name) => row[name]))];
    return { name: this.title, picture: this.picture, legend, table };
  }

  /** Mark a user and show what is known of it; null unmarks. */
  point(position, pixel = null) {
    this.at = position;
    this.onPoint(position);
    if (position == null) {
      this.overlay?.replaceChildren();
      return hideTip();
    }
    const width = Math.max(6, this.step);
    this.overlay.replaceChildren(
      svg("rect", {
        class: "lane",
        x: this.x(position) - width / 2,
        width,
        y: this.frame.top,
        height: this.frame.bottom - this.frame.top,
      }),
    );
    const row = this.rows[position];
    return showTip(
      this.picture,
      `Client ${row.client}`,
      tipRows(row, this.columns),
      this.x(position),
      pixel ?? this.frame.top,
    );
  }
}

/** A disc under z, a diamond for the own model, and a line between them: thick where the own model is worse. */
function marks(row, x, y, radius) {
  const has = (value) => Number.isFinite(value);
  const parts = [];
  if (has(row.acc_global) && has(row.own)) {
    const kind = isBetter(row.acc_global, row.own) ? "loss tone-1" : "gain";
    parts.push(svg("line", { class: kind, x1: x, x2: x, y1: y(row.acc_global), y2: y(row.own) }));
  }
  if (has(row.own)) parts.push(svg("path", { class: "own tone-1", d: diamond(x, y(row.own), radius * 1.25) }));
  if (has(row.acc_global))
    parts.push(
      svg("circle", {
        class: "under-z tone-0",
        cx: x,
        cy: y(row.acc_global),
        r: radius * 0.85,
        "data-client": row.client,
      }),
    );
  return parts;
}

const diamond = (x, y, r) => `M${x} ${y - r}L${x + r} ${y}L${x} ${y + r}L${x - r} ${y}Z`;

function keyOf(ownLabel) {
  const sign = (...parts) =>
    svg(
      "svg",
      { class: "chart-key", width: 16, height: 16, "aria-hidden": "true" },
      svg("g", { class: "chart" }, ...parts),
    );
  return [
    html("span", {}, sign(svg("circle", { class: "under-z tone-0", cx: 8, cy: 8, r: 4 })), "server's model z"),
    html("span", {}, sign(svg("path", { class: "own tone-1", d: diamond(8, 8, 5.5) })), ownLabel),
    html("span", {}, sign(svg("line", { class: "loss tone-1", x1: 8, x2: 8, y1: 1, y2: 15 })), "own is worse than z"),
    html("span", {}, sign(svg("line", { class: "cross", x1: 0, x2: 16, y1: 8, y2: 8 })), "mean under z"),
  ];
}
