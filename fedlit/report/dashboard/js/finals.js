/** The table of final values: a row for each group (mean ± std) or run, sorted by any column. */

import { page } from "./data.js";
import { counted, html, swatch } from "./dom.js";
import { csvButton } from "./download.js";
import { plainSpread, unitText } from "./format.js";
import { averaged, chosenMetrics, chosenRuns, isMixed, noRun } from "./selection.js";
import { deviation, finalOf, mean } from "./series.js";
import { change, state } from "./state.js";

/** Fill the view with the table. */
export function showFinals(view) {
  const metrics = chosenMetrics();
  const rows = state.mode === "runs" ? chosenRuns().map(runRow) : groupRows();
  if (!rows.length) return view.replaceChildren(html("p", { class: "empty card", text: noRun() }));
  const cells = rows.map((row) => ({ ...row, finals: metrics.map((metric) => finalCell(row.runs, metric.name)) }));
  const sorted = sortRows(cells, metrics);
  const best = bestByData(cells, metrics);
  const focused = document.activeElement?.dataset?.sort;
  view.replaceChildren(
    html(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Final values" },
      html("table", {}, head(metrics), body(sorted, metrics, best)),
    ),
    html("p", { class: "note muted" }, `${note(metrics)} `, csvButton(() => told(sorted, metrics))),
  );
  if (focused) view.querySelector(`[data-sort="${CSS.escape(focused)}"]`)?.focus();
  return undefined;
}

/** What a file of this table holds. */
function told(rows, metrics) {
  const heads = metrics.flatMap((metric) => [metric.name, `${metric.name} std`]);
  const cells = rows.map((row) => {
    const values = row.finals.flatMap((cell) => [cell?.value ?? null, cell?.std ?? null]);
    return [row.data, row.label, row.runs.length, lastRound(row.runs), ...values];
  });
  return { name: "final values", table: [["data", "label", "runs", "rounds", ...heads], ...cells] };
}

function note(metrics) {
  const where = isMixed() ? "best of the data set" : "best of the column";
  const choose = metrics.length
    ? `Bold: ${where}, where one way is better.`
    : "No metric is chosen: tick one or more under Metrics.";
  const over = state.mode === "runs" ? "" : " ± is the standard deviation over the runs of a group (n − 1).";
  return `The last measured value of each run.${over} ${choose} Press a heading to sort.`;
}

function runRow(run) {
  const { style, data } = page.groups[run.group];
  return { label: run.title, style, data, runs: [run] };
}

function groupRows() {
  const chosen = chosenRuns();
  const rows = page.groups.map((group) => ({
    label: group.label,
    style: group.style,
    data: group.data,
    runs: averaged(chosen.filter((run) => run.group === group.number)),
  }));
  return rows.filter((row) => row.runs.length);
}

function finalCell(runs, name) {
  const values = runs.map((run) => finalOf(run, name)).filter((value) => value != null);
  return values.length ? { value: mean(values), std: deviation(values), count: values.length } : null;
}

function sortRows(rows, metrics) {
  const at = metrics.findIndex((metric) => metric.name === state.sort);
  const value =
    { label: (row) => row.label, data: (row) => row.data, rounds: (row) => lastRound(row.runs) }[state.sort] ??
    ((row) => row.finals[at]?.value ?? null);
  return state.sort === "" || (at < 0 && !["label", "data", "rounds"].includes(state.sort))
    ? rows
    : sortedBy(rows, value, state.down === "1");
}

/** Rows by a number or a text; those without one come last in either direction. */
export function sortedBy(rows, value, down) {
  const sign = down ? -1 : 1;
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  const missing = (row) => value(row) == null || Number.isNaN(value(row));
  return [...rows].sort((a, b) => missing(a) - missing(b) || (missing(a) ? 0 : sign * compare(value(a), value(b))));
}

const lastRound = (runs) => Math.max(...runs.map((run) => run.last));

/** For each data set, the best value of each metric: of different data they cannot be compared. */
function bestByData(rows, metrics) {
  const byData = Map.groupBy(rows, (row) => row.data);
  const best = (own) =>
    metrics.map((metric, at) =>
      bestOf(
        own.map((row) => row.finals[at]?.value),
        metric.best,
      ),
    );
  return new Map([...byData].map(([data, own]) => [data, best(own)]));
}

function bestOf(values, direction) {
  const known = values.filter((value) => value != null);
  if (!direction || new Set(known).size < 2) return null;
  return direction === "max" ? Math.max(...known) : Math.min(...known);
}

function head(metrics) {
  const columns = metrics.map((metric) =>
    heading(
      metric.name,
      metric.label,
      [metric.name, unitText(metric.unit)].filter(Boolean).join(", "),
      metric.definition,
      metric.best !== "min",
    ),
  );
  const users = state.mode === "runs" ? html("th", { scope: "col" }) : null;
  const first = heading("label", state.mode === "runs" ? "run" : "group", "", null, false);
  const data = isMixed() ? heading("data", "data", "", null, false) : null;
  return html("thead", {}, html("tr", {}, first, data, heading("rounds", "rounds", "", null, true), ...columns, users));
}

function heading(key, label, under, title, downFirst) {
  const order = state.sort !== key ? null : state.down === "1" ? "descending" : "ascending";
  const press = () =>
    change({ sort: key, down: order == null ? (downFirst ? "1" : "") : order === "descending" ? "" : "1" });
  const button = html("button", { type: "button", "data-sort": key, title, text: label, onclick: press });
  return html(
    "th",
    { scope: "col", "aria-sort": order ?? "none", class: key === "data" ? "text" : null },
    button,
    under ? html("small", { text: under }) : null,
  );
}

function body(rows, metrics, best) {
  return html(
    "tbody",
    {},
    ...rows.map((row) => {
      const name = html(
        "td",
        {},
        swatch(row.style),
        row.label,
        state.mode === "runs" ? null : html("small", { class: "muted", text: ` ${counted(row.runs.length, "run")}` }),
      );
      const data = isMixed() ? html("td", { class: "text", text: row.data, title: page.abouts[row.data] }) : null;
      const own = best.get(row.data);
      const cells = row.finals.map((cell, at) => finalElement(cell, metrics[at], own[at], row.runs.length));
      const users = state.mode === "runs" ? html("td", {}, usersButton(row.runs[0])) : null;
      const rounds = html("td", { text: lastRound(row.runs).toLocaleString("en") });
      return html("tr", {}, name, data, rounds, ...cells, users);
    }),
  );
}

function finalElement(cell, metric, best, runs) {
  if (!cell) return html("td", { text: "–" });
  const some = cell.count < runs ? ` (${cell.count} of ${runs})` : "";
  return html("td", {
    class: cell.value === best ? "best" : null,
    text: plainSpread(metric.unit, cell.value, cell.std) + some,
  });
}

function usersButton(run) {
  return (
    run.users &&
    html("button", {
      type: "button",
      text: "Users",
      "aria-label": `Users of ${run.title}`,
      onclick: () => change({ tab: "users", run: run.key }),
    })
  );
}
