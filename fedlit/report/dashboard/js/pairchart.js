/** The picture of two groups user by user: a disc for each user, and the diagonal where both are equal. */

import { bottomAxis, domainOf, frameOf, scale, valueAxis, valueTicks } from "./axes.js";
import { html, svg } from "./dom.js";
import { plain, shown, tickText } from "./format.js";
import { isMixed } from "./selection.js";
import { hideTip, showTip } from "./tip.js";

const RESIZED = new ResizeObserver((entries) => entries.forEach((entry) => entry.target.chart.draw()));
const [LEAST, MOST] = [3.5, 10]; // pixels: radius of the user with the least and with the most data
const REACH = 24; // pixels: as near as this the pointer finds a user
const TICKS = 5; // about so many, the same on both axes
const LONGEST = 44; // characters of a name that fit along an axis

/** A figure that `update` fills. `onPoint(position or null)` is called while the pointer is on a user. */
export class PairChart {
  constructor(caption, onPoint) {
    this.onPoint = onPoint;
    this.picture = svg("svg", { class: "chart pairs", tabindex: "0", role: "img" });
    this.element = html("figure", { class: "card" }, caption, this.picture);
    this.picture.chart = this;
    this.at = null;
    RESIZED.observe(this.picture);
    this.listen();
  }

  /** `points`: of pairrows.js; the groups give names and colours. */
  update(points, first, second) {
    Object.assign(this, { points, first, second, at: null });
    this.picture.setAttribute(
      "aria-label",
      `Accuracy of ${points.length} users under ${first.label} and under ${second.label}. ` +
        "Arrow keys move from user to user.",
    );
    this.draw();
  }

  draw() {
    const { width, height } = this.picture.getBoundingClientRect();
    if (!this.points?.length || width < 80) return;
    const domain = domainOf(this.points.flatMap(({ a, b }) => [a, b]), "share", false);
    const ticks = valueTicks(domain, "share", false, TICKS);
    const whole = frameOf(width - MOST, height, ticks); // a label or a disc at the end is not cut
    const side = Math.min(whole.right - whole.left, whole.bottom - whole.top);
    const left = whole.left + (whole.right - whole.left - side) / 2;
    const frame = { ...whole, left, right: left + side, bottom: whole.top + side };
    this.x = scale(domain, [frame.left, frame.right]);
    this.y = scale(domain, [frame.bottom, frame.top]);
    this.overlay = svg("g");
    const [low, high] = domain;
    const ends = { x1: this.x(low), y1: this.y(low), x2: this.x(high), y2: this.y(high) };
    const discs = this.points.map((point) => this.disc(point));
    this.picture.replaceChildren(
      ...this.axes(frame, domain, ticks),
      svg("line", { class: "diagonal", ...ends }),
      ...discs.sort((p, q) => q.getAttribute("r") - p.getAttribute("r")), // small ones on top
      this.overlay,
    );
  }

  axes(frame, domain, ticks) {
    const tick = (value, step) => tickText("share", value, step);
    const along = { count: TICKS, leastStep: 0, tick, name: `under ${shortened(this.first.label)}` };
    const upright = ticks.map(({ tick: at }) =>
      svg("line", { class: "grid", x1: this.x(at), x2: this.x(at), y1: frame.top, y2: frame.bottom }),
    );
    const named = { ...frame, nameAt: frame.left - 18 - 7.2 * Math.max(...ticks.map(({ text }) => text.length)) };
    return [
      ...upright,
      ...valueAxis(named, ticks, this.y, `under ${shortened(this.second.label)}`, "share"),
      ...bottomAxis(frame, domain, this.x, along),
    ];
  }

  /** In the colour of the group under which the user is better off; its area is the user's data. */
  disc(point) {
    const better = point.gain > 0 ? this.second : this.first;
    const kind = point.gain === 0 ? "user same" : `user ${better.style.tone}`;
    const place = { cx: this.x(point.a).toFixed(1), cy: this.y(point.b).toFixed(1), r: this.radius(point).toFixed(1) };
    return svg("circle", { class: kind, ...place, "data-client": point.client });
  }

  radius({ size }) {
    const most = Math.max(...this.points.map((point) => point.size));
    return Number.isFinite(size) && most > 0 ? Math.max(LEAST, MOST * Math.sqrt(size / most)) : LEAST;
  }

  listen() {
    this.picture.addEventListener("pointermove", (event) => this.x && this.point(this.nearest(event)));
    this.picture.addEventListener("pointerleave", () => this.point(null));
    this.picture.addEventListener("blur", () => this.point(null));
    this.picture.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      if (event.key === "Escape") this.point(null);
      if (steps === undefined || !this.x) return;
      event.preventDefault();
      this.point(Math.max(0, Math.min(this.points.length - 1, (this.at ?? -1) + steps)));
    });
  }

  /** The position of the user nearest to the pointer, or null if none is near. */
  nearest({ clientX, clientY }) {
    const { left, top } = this.picture.getBoundingClientRect();
    const away = this.points.map(({ a, b }) => Math.hypot(this.x(a) - (clientX - left), this.y(b) - (clientY - top)));
    const best = away.indexOf(Math.min(...away));
    return away[best] <= REACH ? best : null;
  }

  /** Mark a user and show what is known of it; null unmarks. */
  point(position) {
    this.at = position;
    this.onPoint(position);
    if (position == null) {
      this.overlay?.replaceChildren();
      return hideTip();
    }
    const point = this.points[position];
    const [x, y] = [this.x(point.a), this.y(point.b)];
    this.overlay.replaceChildren(svg("circle", { class: "ring", cx: x, cy: y, r: this.radius(point) + 3 }));
    const rows = [
      [null, "data size", plain("", point.size), false],
      [null, `under ${this.first.label}`, shown("share", point.a), point.gain < 0],
      [null, `under ${this.second.label}`, shown("share", point.b), point.gain > 0],
      [null, "gain", shown("points", point.gain), false],
    ];
    return showTip(this.picture, `Client ${point.client}`, rows, x, y);
  }

  /** What a file of this chart holds. */
  told() {
    const { first, second, points } = this;
    const rows = points.map(({ client, size, a, b, gain }) => [client, size, a, b, gain]);
    const heads = ["client", "data size", `accuracy under ${first.label}`, `accuracy under ${second.label}`, "gain"];
    return {
      name: `${second.label} against ${first.label}, user by user${isMixed() ? `, ${first.data}` : ""}`,
      picture: this.picture,
      legend: [first, second].map((group) => [group.style, `better under ${group.label}`]),
      table: [heads, ...rows],
    };
  }
}

/** A disc for a key. */
export const discSign = (kind) =>
  svg(
    "svg",
    { class: "chart-key", width: 16, height: 16, "aria-hidden": "true" },
    svg("g", { class: "chart" }, svg("circle", { class: `user ${kind}`, cx: 8, cy: 8, r: 5 })),
  );

const shortened = (text) => (text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text);
