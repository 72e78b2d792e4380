/** The view with curves: a chart for each chosen metric and data set; and how charts are kept and placed. */

import { page } from "./data.js";
import { html, keepChildren } from "./dom.js";
import { downloads } from "./download.js";
import { LineChart } from "./linechart.js";
import { chosenMetrics, chosenRuns, isMixed, noRun, ofData } from "./selection.js";
import { linesOf, plainMetric } from "./series.js";
import { change, state, toggled, zoomed } from "./state.js";
import { xAxis } from "./xaxis.js";

const charts = new Map(); // by metric or pair, and data set: drawn again, not made again, so that focus stays

/** A chart for each chosen metric and data set. */
export function showCurves(view) {
  const rows = chosenMetrics().map((metric) => {
    const log = canBeLog(metric) && state.log.includes(metric.name);
    return figures(
      (data) => linesOf(plainMetric(metric.name), data),
      (data) => kept(metric.name, data, metricCaption(metric, log)),
      { label: metric.label, title: metric.label, unit: metric.unit, log, smooth: state.smooth },
    );
  });
  place(view, rows, "No metric is chosen. Tick one or more under Metrics.");
}

/** A figure for each data set of which there is something to draw; where there is none, the first says so. */
export function figures(linesFor, chartFor, spec) {
  const axis = xAxis();
  const empty = `None of the chosen runs has measured this${axis.without ? ` with ${axis.without}` : ""}.`;
  const chosen = page.datasets.filter((data) => ofData(chosenRuns(), data).length);
  if (!chosen.length) return [];
  const drawn = chosen.map((data) => ({ data, lines: linesFor(data) })).filter(({ lines }) => lines.length);
  return (drawn.length ? drawn : [{ data: chosen[0], lines: [] }]).map(({ data, lines }) => {
    const chart = chartFor(data);
    const title = isMixed() ? `${spec.title}, ${data}` : spec.title;
    chart.update({ ...spec, title, data, lines, axis, zoom: zoomed(), empty });
    chart.element.querySelector(".log")?.setAttribute("aria-pressed", spec.log);
    return chart.element;
  });
}

/** The chart of a name and a data set; `caption` gives the elements of a new one's. */
export function kept(name, data, caption) {
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

/** Put rows of figures into the view: a grid for each, or one for all where no row has more than one figure. */
export function place(view, rows, nothing) {
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

/** Figures side by side. */
export function fillGrid(grid, figures) {
  keepChildren(grid, figures);
  grid.classList.toggle("two-columns", figures.length % 3 === 1); // no chart stands alone in its row
}
