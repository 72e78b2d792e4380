/** The view of min and max user: numbers, a picture of both for each group with the gap between them, and the gap. */

import { figures, fillGrid, kept, place } from "./curves.js";
import { page } from "./data.js";
import { html, keepChildren, swatch } from "./dom.js";
import { downloads } from "./download.js";
import { gapOf, highOf, lastOf, lowOf, spreadsOf } from "./gaps.js";
import { GapTable, rounded } from "./gaptable.js";
import { LineChart } from "./linechart.js";
import { chosenRuns, isMixed, noRun, ofData } from "./selection.js";
import { linesOf, membersOf, trailingMetric } from "./series.js";
import { state, zoomed } from "./state.js";
import { xAxis } from "./xaxis.js";

const MOST_PANELS = 24; // more cannot be compared, and take long to draw
const LOW_DASH = "3 3";
const aboutOf = (label) =>
  "Every round draws a cohort. Its min user is the client with the fewest training samples, its max user the one with " +
  `the most. Shown is the ${label} of the server's model on the own test data of the two.`;
const blocks = new Map(); // by measure and data set: drawn again, not made again, so that focus stays
const rest = html("div", { class: "rest" });

const minMax = ({ name, label, unit }) => ({
  low: `min_user/${name}`,
  high: `max_user/${name}`,
  gap: `min_max/${name}_gap`,
  title: `min-user and max-user ${label}`,
  label,
  unit,
  words: ["min user", "max user"],
});
const OTHERS = [
  {
    low: "min_user/weight",
    high: "max_user/weight",
    title: "min-user and max-user coefficient",
    label: "coefficient",
    words: ["min user", "max user"],
    about: "how much the cohort's smallest and largest client count in the new model",
  },
  {
    low: "min_user/size_share",
    high: "max_user/size_share",
    title: "min-user and max-user share of samples",
    label: "share of samples",
    words: ["min user", "max user"],
    about: "how much they would count if every sample of the cohort counted the same",
  },
];
const worstBest = ({ name, label, best }) => ({
  low: `users/${name}_min`,
  high: `users/${name}_max`,
  title: `worst and best user's ${label}`,
  label,
  words: best === "max" ? ["worst user", "best user"] : ["best user", "worst user"],
  about: `z on own test data: the lowest and the highest ${label} over all users`,
});

/** Numbers and pictures of min and max user, then what else shows who gains and who loses. */
export function showExtremes(view) {
  const has = (pair) => page.metricOf.has(pair.low) && page.metricOf.has(pair.high);
  const pairs = page.measures.map(minMax).filter(has);
  const others = [...page.measures.map(worstBest), ...OTHERS].filter(has);
  if (!chosenRuns().length || !(pairs.length || others.length)) return view.replaceChildren(nothing());
  const shown = page.datasets.filter((data) => ofData(chosenRuns(), data).length);
  const updated = shown.flatMap((data) => pairs.map((pair) => blockOf(pair, data).update()));
  keepChildren(view, [...updated.filter(Boolean), rest]);
  place(rest, [...pairs.map(gapFigures), ...others.map(otherFigures)], "");
  return undefined;
}

function nothing() {
  const unknown =
    "These runs measured neither min_user/* nor users/*: they have no data of their own for testing each user.";
  return html("p", { class: "empty card", text: chosenRuns().length ? unknown : noRun() });
}

function blockOf(pair, data) {
  const key = `${pair.low}\n${data}`;
  if (!blocks.has(key)) blocks.set(key, new Block(pair, data));
  return blocks.get(key);
}

/** Min and max user by one measure on one data set. */
class Block {
  constructor(pair, data) {
    Object.assign(this, { pair, data, panels: new Map() });
    this.table = new GapTable(pair.title);
    this.empty = html("p", { class: "empty card" });
    this.grid = html("div", { class: "charts" });
    const where = isMixed() ? html("p", { class: "data", text: data, title: page.abouts[data] }) : null;
    const words = [html("h2", { text: pair.title }), where, html("p", { class: "muted", text: aboutOf(pair.label) })];
    const pictures = [keyOf(pair), this.empty, this.grid];
    this.element = html("section", { class: "block" }, ...words, this.table.element, ...pictures);
  }

  /** Fill it with what is chosen; null where no chosen run has both. */
  update() {
    const { pair, data } = this;
    const last = lastOf(state.window);
    const members = membersOf(lowOf(pair, 1), data).map((runs) => [runs, spreadsOf(runs, pair, last)]);
    const rows = members.filter(([, numbers]) => numbers);
    if (!rows.length) return null;
    this.table.update(rows, pair, last);
    const [highs, lows] = [linesOf(highOf(pair, state.window), data), linesOf(lowOf(pair, state.window), data)];
    const drawn = highs.slice(0, MOST_PANELS).map((high, at) => this.panel(high, lows[at], [...highs, ...lows], last));
    this.empty.hidden = drawn.length === highs.length && drawn.length > 0;
    this.empty.textContent = drawn.length
      ? `${MOST_PANELS} of ${highs.length} are drawn. Choose fewer runs to see the others.`
      : `None of the chosen runs has measured this with ${xAxis().without}.`;
    fillGrid(this.grid, drawn);
    return this.element;
  }

  /** A picture of one group or run: both lines, and the gap between them. */
  panel(high, low, fit, last) {
    const { pair, data } = this;
    const key = state.mode === "runs" ? high.runs[0].key : String(high.runs[0].group);
    if (!this.panels.has(key)) this.panels.set(key, new Panel());
    const named = (line, word, dash) => ({ ...line, label: `${word}: ${line.label}`, style: { ...line.style, dash } });
    const spec = {
      lines: [named(high, pair.words[1], null), named(low, pair.words[0], LOW_DASH)],
      title: `${pair.title}, ${high.label}${isMixed() ? `, ${data}` : ""}`,
      ...{ data, fit, gap: true, label: pair.label, unit: pair.unit, log: false, smooth: 1, window: state.window },
      ...{ axis: xAxis(), zoom: zoomed(), empty: "" },
    };
    return this.panels.get(key).update(spec, high, factsOf(high.runs, pair, last));
  }
}

/** A line chart whose caption is a group or run with its numbers. */
class Panel {
  constructor() {
    this.heading = html("h2");
    this.facts = html("small");
    const words = html("div", { class: "words" }, this.heading, this.facts);
    this.chart = new LineChart(html("figcaption", {}, words, downloads(() => this.chart.told())));
  }

  update(spec, line, facts) {
    this.heading.replaceChildren(swatch(line.style), " ", line.label);
    this.facts.textContent = facts;
    this.chart.update(spec);
    return this.chart.element;
  }
}

function factsOf(runs, pair, last) {
  const { gap, nearAlways } = spreadsOf(runs, pair, last);
  const apart = `gap ${rounded(pair.unit === "share" ? "points" : "", gap.mean, gap.std)}`;
  if (pair.unit !== "share") return `${apart} in the last ${last} rounds`;
  const share = `${(100 * nearAlways.mean).toFixed(0)} %`;
  return `${apart} points in the last ${last} rounds · within ten points in ${share} of all rounds`;
}

/** What the signs of the panels mean. */
function keyOf({ words }) {
  const line = (dash) => swatch({ tone: "same", dash });
  return html(
    "p",
    { class: "key" },
    html("span", {}, line(null), words[1]),
    html("span", {}, line(LOW_DASH), words[0]),
    html("span", {}, html("i", { class: "patch" }), "the gap between them"),
  );
}

/** The gap by round, all groups in one picture. */
function gapFigures(pair) {
  const title = `gap between ${pair.words.join(" and ")}${page.measures.length > 1 ? `, ${pair.label}` : ""}`;
  const about = `|${pair.high} − ${pair.low}| in each evaluated round`;
  const unit = pair.unit === "share" ? "points" : "";
  return figures(
    (data) => linesOf(gapOf(pair, state.window), data),
    (data) => kept(title, data, () => [words(title, about)]),
    { label: "gap", title, unit, log: false, smooth: 1, window: state.window },
  );
}

/** The lines of a pair, of all groups in one picture. */
function otherFigures(pair) {
  const { title, label } = pair;
  const { unit } = page.metricOf.get(pair.high);
  return figures(
    (data) => pairLines(pair, data),
    (data) => kept(title, data, () => [pairWords(pair)]),
    { label, title, unit, log: false, smooth: 1, window: state.window },
  );
}

function pairLines({ low, high, words: [ofLow, ofHigh] }, data) {
  const linesIn = (name) => linesOf(trailingMetric(name, state.window), data);
  const named = (line, word, dash) => ({ ...line, label: `${word}: ${line.label}`, style: { ...line.style, dash } });
  return [
    ...linesIn(high).map((line) => named(line, ofHigh, null)),
    ...linesIn(low).map((line) => named(line, ofLow, LOW_DASH)),
  ];
}

const words = (title, ...about) =>
  html("div", { class: "words" }, html("h2", { text: title }), ...about.map((part) => html("small", {}, part)));

function pairWords({ title, about, low, high, words: [ofLow, ofHigh] }) {
  const names = html("small", {}, `${ofHigh}: solid, `, html("code", { text: high }));
  names.append(` · ${ofLow}: dotted, `, html("code", { text: low }));
  return html("div", { class: "words" }, html("h2", { text: title }), html("small", { text: about }), names);
}
