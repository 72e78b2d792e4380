/** The panels that choose runs and metrics. Built once; afterwards only ticks and what is hidden change. */

import { page } from "./data.js";
import { byId, counted, html, swatch } from "./dom.js";
import { unitText } from "./format.js";
import { chosenMetrics, chosenRuns, isMixed, ofData, passes, ticked, usualMetrics, withTicks } from "./selection.js";
import { change, state, toggled } from "./state.js";

const opened = new Set(); // groups whose runs are listed
const rows = { datasets: [], groups: [], runs: [], metrics: [] };

/** Build both panels. */
export function buildSidebar() {
  buildChips("Data", "data", page.datasets);
  buildChips(
    "Algorithms",
    "algorithm",
    page.groups.map((group) => group.algorithm),
  );
  buildChips(
    "Seeds",
    "seed",
    page.runs.map((run) => run.seed),
  );
  byId("run-list").append(...page.datasets.flatMap(dataRows));
  byId("metric-list").append(...metricRows());
  byId("run-filter").addEventListener("input", (event) => change({ filter: event.target.value }));
  byId("runs-all").addEventListener("click", () => change(withTicks(page.runs.filter(passes), true)));
  byId("runs-none").addEventListener("click", () => change(withTicks(page.runs.filter(passes), false)));
  byId("runs-clear").addEventListener("click", () => change({ filter: "", data: [], algorithm: [], seed: [] }));
  byId("metric-filter").addEventListener("input", updateMetrics);
  byId("metrics-default").addEventListener("click", () => change({ metrics: null }));
  byId("metrics-none").addEventListener("click", () => change({ metrics: [] }));
}

/** Buttons that narrow the runs to some values; none where all runs have the same. */
function buildChips(heading, field, values) {
  const different = [...new Set(values)];
  const box = byId(heading.toLowerCase());
  box.hidden = different.length < 2;
  box.append(html("span", { class: "muted", text: heading }));
  for (const value of different) {
    const press = () => change({ [field]: toggled(state[field], value) });
    box.append(
      html("button", {
        type: "button",
        text: value,
        title: page.abouts[value],
        "data-field": field,
        "data-value": value,
        onclick: press,
      }),
    );
  }
}

/** The groups of a data set, below its name where there are several. */
function dataRows(data) {
  const groups = page.groups.filter((group) => group.data === data).map(groupRow);
  if (!isMixed()) return groups;
  const heading = html("li", { class: "family", text: data, title: page.abouts[data] });
  rows.datasets.push({ data, heading });
  return [heading, ...groups];
}

function groupRow(group) {
  const box = html("input", {
    type: "checkbox",
    onchange: () => change(withTicks(group.runs.filter(passes), box.checked)),
  });
  const size = html("small");
  const own = html("ul", {}, ...group.runs.map(runRow));
  const more = html("button", {
    type: "button",
    class: "more",
    "aria-label": `List the runs of ${group.label}`,
    onclick: () => unfold(group),
  });
  const label = html(
    "label",
    {},
    box,
    swatch(group.style),
    html("span", {}, html("span", { text: group.label }), size),
  );
  const row = html("li", {}, html("div", { class: "group" }, label, more), own);
  rows.groups.push({ group, row, box, size, own, more });
  return row;
}

function runRow(run) {
  const box = html("input", { type: "checkbox", onchange: () => change(withTicks([run], box.checked)) });
  const facts = [`seed ${run.seed}`, counted(run.last, "round"), run.finished ? null : "not finished"]
    .filter(Boolean)
    .join(" · ");
  const row = html(
    "li",
    { title: run.path },
    html("label", {}, box, html("span", {}, html("span", { text: run.name }), html("small", { text: facts }))),
  );
  rows.runs.push({ run, row, box });
  return row;
}

function unfold(group) {
  if (!opened.delete(group)) opened.add(group);
  updateRuns();
}

function metricRows() {
  const families = [...new Set(page.metrics.map(familyOf))];
  return families.flatMap((family) => [
    html("li", { class: "family", text: family }),
    ...page.metrics.filter((metric) => familyOf(metric) === family).map(metricRow),
  ]);
}

const familyOf = (metric) => (metric.name.includes("/") ? metric.name.split("/")[0] : "other");

function metricRow(metric) {
  const choose = () =>
    change({
      metrics: toggled(
        chosenMetrics().map((other) => other.name),
        metric.name,
      ),
    });
  const box = html("input", { type: "checkbox", onchange: choose });
  const unit = unitText(metric.unit) ? ` (${unitText(metric.unit)})` : "";
  const about = html("small", { text: metric.definition });
  const words = html(
    "span",
    {},
    html("span", { text: `${metric.label}${unit} ` }),
    html("code", { text: metric.name }),
    about,
  );
  const row = html("li", { "data-metric": metric.name }, html("label", {}, box, words));
  rows.metrics.push({ metric, row, box });
  return row;
}

/** Show what is chosen. */
export function updateSidebar() {
  document.querySelectorAll("[data-field]").forEach((chip) => {
    chip.setAttribute("aria-pressed", state[chip.dataset.field].includes(chip.dataset.value));
  });
  if (byId("run-filter").value !== state.filter) byId("run-filter").value = state.filter;
  updateRuns();
  updateMetrics();
}

function updateRuns() {
  const passing = page.runs.filter(passes);
  for (const { data, heading } of rows.datasets) heading.hidden = !ofData(passing, data).length;
  for (const { run, row, box } of rows.runs) {
    row.hidden = !passes(run);
    box.checked = ticked(run);
  }
  for (const { group, row, box, size, own, more } of rows.groups) {
    const listed = group.runs.filter(passes);
    const on = listed.filter(ticked).length;
    row.hidden = !listed.length;
    box.checked = on > 0 && on === listed.length;
    box.indeterminate = on > 0 && on < listed.length;
    size.textContent = on === group.runs.length ? counted(on, "run") : `${on} of ${counted(group.runs.length, "run")}`;
    own.hidden = !opened.has(group);
    more.textContent = opened.has(group) ? "▾" : "▸";
    more.setAttribute("aria-expanded", opened.has(group));
  }
  byId("run-list-empty").hidden = rows.groups.some(({ row }) => !row.hidden);
  const narrowed = [state.filter, state.data, state.algorithm, state.seed].some((chosen) => chosen.length);
  byId("runs-clear").hidden = !narrowed;
  byId("run-count").textContent = `${chosenRuns().length} of ${page.runs.length}`;
}

function updateMetrics() {
  const words = byId("metric-filter").value.toLowerCase();
  const chosen = new Set(chosenMetrics().map((metric) => metric.name));
  for (const { metric, row, box } of rows.metrics) {
    row.hidden = !`${metric.name} ${metric.label} ${metric.definition}`.toLowerCase().includes(words);
    box.checked = chosen.has(metric.name);
  }
  for (const heading of byId("metric-list").querySelectorAll(".family")) {
    const own = rows.metrics.filter(({ metric }) => familyOf(metric) === heading.textContent);
    heading.hidden = own.every(({ row }) => row.hidden);
  }
  byId("metric-count").textContent = `${chosen.size} of ${page.metrics.length}`;
  byId("metrics-default").disabled = state.metrics == null || String(state.metrics) === String(usualMetrics());
}
