/** The views with curves: a chart for each chosen metric and data set, and the smallest and largest users. */

import { page } from "./data.js";
import { html } from "./dom.js";
import { downloads } from "./download.js";
import { LineChart } from "./linechart.js";
import { chosenMetrics, chosenRuns, isMixed, noRun, ofData } from "./selection.js";
import { linesOf } from "./series.js";
import { change, state, toggled, zoomed } from "./state.js";
import { xAxis } from "./xaxis.js";

const ofMeasure = ({ name, label, best }) => [
  {
    low: `min_user/${name}`,
    high: `max_user/${name}`,
    title: `min-user and max-user ${label}`,
    label,
    words: ["min user", "max user"],
    about:
      "z on the own test data of the client with the fewest and with the most training samples of each round's cohort",
  },
  {
    low: `users/${name}_min`,
    high: `users/${name}_max`,
    title: `worst and best user's ${label}`,
    label,
    words: best === "max" ? ["worst user", "best user"] : ["best user", "worst user"],
    about: `z on own test data: the lowest and the highest ${label} over all users`,
  },
];
const COEFFICIENTS = [
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
const LOW_DASH = "3 3";
const charts = new Map(); // by metric or pair, and data set: drawn again, not made again, so that focus stays

/** A chart for each chosen metric and data set. */
export function showCurves(view) {
  const rows = chosenMetrics().map((metric) => {
    const log = canBeLog(metric) && state.log.includes(metric.name);
    return figures(
      (data) => linesOf(metric.name, data),
      (data) => kept(metric.name, data, metricCaption(metric, log)),
      { label: metric.label, title: metric.label, unit: metric.unit, log },
    );
  });
  place(view, rows, "No metric is chosen. Tick one or more under Metrics.");
}

/** The pairs of metrics that show who gains and who loses. */
export function showExtremes(view) {
  const pairs = [...page.measures.flatMap(ofMeasure), ...COEFFICIENTS];
  const there = pairs.filter((pair) => page.metricOf.has(pair.low) || page.metricOf.has(pair.high));
  const rows = there.map((pair) =>
    figures(
      (data) => pairLines(pair, data),
      (data) => kept(pair.title, data, pairCaption(pair)),
      { label: pair.label, title: pair.title, unit: page.metricOf.get(pair.high)?.unit ?? "", log: false },
    ),
  );
  place(
    view,
    rows,
    "These runs measured neither min_user/* nor users/*: they have no data of their own for testing each user.",
  );
}

/** A figure for each data set of which there is something to draw; where there is none, the first says so. */
function figures(linesFor, chartFor, spec) {
  const axis = xAxis();
  const empty = `None of the chosen runs has measured this${axis.without ? ` with ${axis.without}` : ""}.`;
  const chosen = page.datasets.filter((data) => ofData(chosenRuns(), data).length);
  if (!chosen.length) return [];
  const drawn = chosen.map((data) => ({ data, lines: linesFor(data) })).filter(({ lines }) => lines.length);
  return (drawn.length ? drawn : [{ data: chosen[0], lines: [] }]).map(({ data, lines }) => {
    const chart = chartFor(data);
    const title = isMixed() ? `${spec.title}, ${data}` : spec.title;
    chart.update({ ...spec, title, data, lines, axis, zoom: zoomed(), smooth: state.smooth, empty });
    chart.element.querySelector(".log")?.setAttribute("aria-pressed", spec.log);
    return chart.element;
  });
}

function pairLines({ low, high, words }, data) {
  const named = (line, word) => ({ ...line, label: `${word}: ${line.label}` });
  const dashed = (line) => ({ ...line, style: { ...line.style, dash: LOW_DASH } });
  const solid = (line) => ({ ...line, style: { ...line.style, dash: null } });
  return [
    ...linesOf(high, data).map((line) => solid(named(line, words[1]))),
    ...linesOf(low, data).map((line) => dashed(named(line, words[0]))),
  ];
}

/** The chart of a name and a data set; `caption` gives the elements of a new one's. */
function kept(name, data, caption) {
  const key = `${name}\n${data}`;
  if (!charts.has(key)) {
    const told = () => charts.get(key).told();
    const where = isMixed() ? html("p", { class: "data", text: data, title: page.abouts[data] }) : null;
    const [words, ...buttons] = caption();
    words.firstElementChild.after(...[where].filter(Boolean));
    charts.set(key, new LineChart(html("figcaption", {}, words, ...buttons, downloads(told))));
  }
  return charts.get(key);
}

const canBeLog = (metric) => metric.unit !== "share";

const metricCaption = (metric, log) => () => [
  html(
    "div",
    { class: "words" },
    html("h2", { text: metric.label }),
    html("small", {}, html("code", { text: metric.name }), ` · ${metric.definition}`),
  ),
  ...(canBeLog(metric) ? [logButton(metric, log)] : []),
];

function logButton(metric, log) {
  const press = () => change({ log: toggled(state.log, metric.name) });
  const said = { class: "log", text: "log", title: "Logarithmic axis", "aria-pressed": String(log) };
  return html("button", { type: "button", ...said, onclick: press });
}

const pairCaption =
  ({ title, about, low, high, words }) =>
  () => {
    const names = html(
      "small",
      {},
      `${words[1]}: solid, `,
      html("code", { text: high }),
      ` · ${words[0]}: dotted, `,
      html("code", { text: low }),
    );
    return [html("div", { class: "words" }, html("h2", { text: title }), html("small", { text: about }), names)];
  };

/** Put rows of figures into the view: a grid for each, or one for all where no row has more than one figure. */
function place(view, rows, nothing) {
  const missing = chosenRuns().length ? nothing : noRun();
  if (!chosenRuns().length || !rows.length)
    return view.replaceChildren(html("p", { class: "empty card", text: missing }));
  const grids = rows.some((row) => row.length > 1) ? rows : [rows.flat()];
  while (view.childElementCount > grids.length || view.querySelector(":scope > :not(.charts)"))
    view.lastElementChild.remove();
  const gridAt = (at) => view.children[at] ?? view.appendChild(html("div", { class: "charts" }));
  grids.forEach((figures, at) => fillGrid(gridAt(at), figures));
  return undefined;
}

/** What is in its place stays there, so that it keeps its focus. */
function fillGrid(grid, figures) {
  if ([...grid.children].some((child, at) => child !== figures[at]) || grid.children.length !== figures.length)
    grid.replaceChildren(...figures);
  grid.classList.toggle("two-columns", figures.length % 3 === 1); // no chart stands alone in its row
}
