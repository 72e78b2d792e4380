/** Scales, ticks and axes. */

import { svg } from "./dom.js";
import { logTickText, tickText, unitText } from "./format.js";

/** Pixels of a value: linear or logarithmic between two values and two pixels. */
export function scale([low, high], [from, to], log = false) {
  const bend = log ? Math.log : (value) => value;
  const slope = (to - from) / (bend(high) - bend(low));
  return (value) => from + (bend(value) - bend(low)) * slope;
}

/** Round numbers between two values, about `count` of them. */
export function linearTicks(low, high, count, least = 0) {
  const step = Math.max(least, niceStep((high - low) / count));
  const ticks = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++) {
    ticks.push(at * step || 0); // no −0
  }
  return { ticks, step };
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 5].find((factor) => factor * power >= rough) ?? 10);
}

/** Powers of ten; with 2 and 5 between them where there are few. */
export function logTicks(low, high) {
  const factors = high / low > 200 ? [1] : high / low > 8 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 8];
  const first = Math.floor(Math.log10(low));
  const powers = Array.from({ length: Math.ceil(Math.log10(high)) - first + 1 }, (_, at) => 10 ** (first + at));
  const ticks = powers.flatMap((power) => factors.map((factor) => factor * power));
  const inside = ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
  const every = Math.ceil(inside.length / 8);
  return inside.filter((_, at) => at % every === 0);
}

/** Lowest and highest of the values with a little air; null if there are none. Shares stay within [0, 1]. */
export function domainOf(values, unit, log) {
  const usable = log ? values.filter((value) => value > 0) : values;
  if (!usable.length) return null;
  const low = usable.reduce((a, b) => Math.min(a, b));
  const high = usable.reduce((a, b) => Math.max(a, b));
  if (log) return low < high ? [low / 1.05, high * 1.05] : [low / 2, high * 2];
  const air = (high - low) * 0.05 || Math.abs(high) * 0.05 || 0.05;
  return unit === "share"
    ? [Math.max(0, low - air), Math.min(1, high + air)]
    : [low < 0 ? low - air : Math.max(0, low - air), high + air];
}

/** Ticks of a value axis with their labels. */
export function valueTicks([low, high], unit, log, count) {
  const decades = log && high / low > 4; // within less, even steps have more labels
  if (decades) return logTicks(low, high).map((tick) => ({ tick, text: logTickText(tick) }));
  const { ticks, step } = linearTicks(low, high, count);
  return ticks.map((tick) => ({ tick, text: tickText(unit, tick, step) }));
}

/** Room for the longest label on the left, and for the axes' names. */
export function frameOf(width, height, labels, below = 40) {
  const longest = Math.max(...labels.map((label) => label.text.length), 3);
  return { left: 28 + 7.2 * longest, right: width - 12, top: 10, bottom: height - below, width, height };
}

/** Grid lines and labels on the left, and the axis' name along it. */
export function valueAxis(frame, ticks, y, label, unit) {
  const lines = ticks.map(({ tick }) =>
    svg("line", { class: "grid", x1: frame.left, x2: frame.right, y1: y(tick), y2: y(tick) }),
  );
  const texts = ticks.map(({ tick, text }) =>
    svg("text", { x: frame.left - 6, y: y(tick) + 4, "text-anchor": "end", text }),
  );
  const middle = (frame.top + frame.bottom) / 2;
  const named = unitText(unit) && unit !== "share" ? `${label} (${unitText(unit)})` : label; // ticks say %
  const turned = `translate(${frame.nameAt ?? 13} ${middle}) rotate(-90)`;
  const place = { class: "name", transform: turned, "text-anchor": "middle" };
  return [...lines, ...texts, svg("text", { ...place, text: named })];
}

/** The axis at the bottom; `axis` is of xaxis.js, or says of itself about how many ticks it has. */
export function bottomAxis(frame, [first, last], x, axis) {
  const count = axis.count ?? Math.max(2, Math.floor((frame.right - frame.left) / 70));
  const { ticks, step } = linearTicks(first, last, count, axis.leastStep);
  const line = svg("line", { class: "axis", x1: frame.left, x2: frame.right, y1: frame.bottom, y2: frame.bottom });
  const texts = ticks.map((tick) =>
    svg("text", { x: x(tick), y: frame.bottom + 16, "text-anchor": "middle", text: axis.tick(tick, step) }),
  );
  const name = svg("text", {
    class: "name",
    x: (frame.left + frame.right) / 2,
    y: frame.bottom + 34,
    "text-anchor": "middle",
    text: axis.name,
  });
  return [line, ...texts, name];
}
