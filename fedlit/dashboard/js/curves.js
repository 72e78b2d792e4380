/** The views with curves: a chart for each chosen metric, and the smallest and largest users. */

import { page } from "./data.js";
import { html } from "./dom.js";
import { LineChart } from "./linechart.js";
import { chosenMetrics, chosenRuns, noRun } from "./selection.js";
import { linesOf } from "./series.js";
import { change, state, toggled, zoomed } from "./state.js";
import { byTime, xAxis } from "./xaxis.js";

const PAIRS = [
  {
    low: "min_user/acc",
    high: "max_user/acc",
    title: "Smallest and largest client of the cohort",
    label: "accuracy",
    words: ["smallest", "largest"],
    about:
      "z on the own test data of the client with the fewest and with the most training samples of each round's cohort",
  },
  {
    low: "users/acc_min",
    high: "users/acc_max",
    title: "Worst and best user",
    label: "accuracy",
    words: ["worst", "best"],
    about: "z on own test data: the lowest and the highest accuracy over all users",
  },
  {
    low: "min_user/weight",
    high: "max_user/weight",
    title: "Their aggregation coefficients",
    label: "coefficient",
    words: ["smallest", "largest"],
    about: "how much the cohort's smallest and largest client count in the new model",
  },
  {
    low: "min_user/size_share",
    high: "max_user/size_share",
    title: "Their shares of the samples",
    label: "share of samples",
    words: ["smallest", "largest"],
    about: "how much they would count if every sample of the cohort counted the same",
  },
];
const LOW_DASH = "3 3";
const charts = new Map(); // by metric or pair: drawn again, not made again, so that focus stays

/** A chart for each chosen metric. */
export function showCurves(view) {
  const metrics = chosenMetrics();
  const figures = metrics.map((metric) => {
    const chart = kept(metric.name, () => metricCaption(metric));
    const log = canBeLog(metric) && state.log.includes(metric.name);
    chart.update({
      ...common(),
      label: metric.label,
      unit: metric.unit,
      log,
      bands: true,
      lines: linesOf(metric.name),
    });
    chart.logButton?.setAttribute("aria-pressed", log);
    return chart.element;
  });
  place(view, figures, "No metric is chosen. Tick one or more under Metrics.");
}

/** The pairs of metrics that show who gains and who loses. */
export function showExtremes(view) {
  const there = PAIRS.filter((pair) => page.metricOf.has(pair.low) || page.metricOf.has(pair.high));
  const figures = there.map((pair) => {
    const chart = kept(pair.title, () => pairCaption(pair));
    const unit = page.metricOf.get(pair.high)?.unit ?? "";
    chart.update({ ...common(), label: pair.label, unit, log: false, bands: false, lines: pairLines(pair) });
    return chart.element;
  });
  place(
    view,
    figures,
    "These runs measured neither min_user/* nor users/*: they have no data of their own for testing each user.",
  );
}

function pairLines({ low, high, words }) {
  const named = (line, word) => ({ ...line, label: `${word}: ${line.label}` });
  const dashed = (line) => ({ ...line, style: { ...line.style, dash: LOW_DASH } });
  const solid = (line) => ({ ...line, style: { ...line.style, dash: null } });
  return [
    ...linesOf(high).map((line) => solid(named(line, words[1]))),
    ...linesOf(low).map((line) => dashed(named(line, words[0]))),
  ];
}

function common() {
  const empty = `None of the chosen runs has measured this${byTime() ? " on a clock" : ""}.`;
  return { axis: xAxis(), zoom: zoomed(), smooth: state.smooth, empty };
}

function kept(name, caption) {
  if (!charts.has(name)) charts.set(name, new LineChart(caption()));
  const chart = charts.get(name);
  chart.logButton = chart.element.querySelector("figcaption button");
  return chart;
}

const canBeLog = (metric) => metric.unit !== "share";

function metricCaption(metric) {
  const words = html(
    "div",
    {},
    html("h2", { text: metric.label }),
    html("small", {}, html("code", { text: metric.name }), ` · ${metric.definition}`),
  );
  const press = () => change({ log: toggled(state.log, metric.name) });
  const log = canBeLog(metric)
    ? html("button", {
        type: "button",
        text: "log",
        title: "Logarithmic axis",
        "aria-pressed": "false",
        onclick: press,
      })
    : null;
  return html("figcaption", {}, words, log);
}

function pairCaption({ title, about, low, high, words }) {
  const names = html(
    "small",
    {},
    `${words[1]}: solid, `,
    html("code", { text: high }),
    ` · ${words[0]}: dotted, `,
    html("code", { text: low }),
  );
  return html("figcaption", {}, html("div", {}, html("h2", { text: title }), html("small", { text: about }), names));
}

/** Put the figures into the view unless they are there; without any, say what to do. */
function place(view, figures, nothing) {
  const missing = chosenRuns().length ? nothing : noRun();
  if (!chosenRuns().length || !figures.length)
    return view.replaceChildren(html("p", { class: "empty card", text: missing }));
  const box = view.firstElementChild?.matches(".charts") ? view.firstElementChild : html("div", { class: "charts" });
  if ([...box.children].some((child, at) => child !== figures[at]) || box.children.length !== figures.length)
    box.replaceChildren(...figures);
  box.classList.toggle("two-columns", figures.length % 3 === 1); // no chart stands alone in its row
  if (box.parentElement !== view) view.replaceChildren(box);
  return undefined;
}
