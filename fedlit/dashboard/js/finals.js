/** The table of final values: a row for each group (mean ± std) or run, sorted by any column. */

import { page } from "./data.js";
import { counted, html, swatch } from "./dom.js";
import { plainSpread, unitText } from "./format.js";
import { chosenMetrics, chosenRuns, noRun } from "./selection.js";
import { deviation, finalOf, mean } from "./series.js";
import { change, state } from "./state.js";

/** Fill the view with the table. */
export function showFinals(view) {
  const metrics = chosenMetrics();
  const rows = state.mode === "runs" ? chosenRuns().map(runRow) : groupRows();
  if (!rows.length) return view.replaceChildren(html("p", { class: "empty card", text: noRun() }));
  const cells = rows.map((row) => ({ ...row, finals: metrics.map((metric) => finalCell(row.runs, metric.name)) }));
  const sorted = sortRows(cells, metrics);
  const best = metrics.map((metric, at) =>
    bestOf(
      cells.map((row) => row.finals[at]?.value),
      metric.best,
    ),
  );
  const focused = document.activeElement?.dataset?.sort;
  view.replaceChildren(
    html(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Final values" },
      html("table", {}, head(metrics), body(sorted, metrics, best)),
    ),
    html("p", { class: "note muted", text: note(metrics) }),
  );
  if (focused) view.querySelector(`[data-sort="${CSS.escape(focused)}"]`)?.focus();
  return undefined;
}

function note(metrics) {
  const choose = metrics.length
    ? "Bold: best of the column, where one way is better."
    : "No metric is chosen: tick one or more under Metrics.";
  const over = state.mode === "runs" ? "" : " ± is the standard deviation over the runs of a group (n − 1).";
  return `The last measured value of each run.${over} ${choose} Press a heading to sort.`;
}

const runRow = (run) => ({ label: run.title, style: page.groups[run.group].style, runs: [run] });

function groupRows() {
  const chosen = chosenRuns();
  const rows = page.groups.map((group) => ({
    label: group.label,
    style: group.style,
    runs: chosen.filter((run) => run.group === group.number),
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
    { label: (row) => row.label, rounds: (row) => lastRound(row.runs) }[state.sort] ??
    ((row) => row.finals[at]?.value ?? null);
  return state.sort === "" || (at < 0 && !["label", "rounds"].includes(state.sort))
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

function bestOf(values, direction) {
  const known = values.filter((value) => value != null);
  if (!direction || known.length < 2) return null;
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
  return html("thead", {}, html("tr", {}, first, heading("rounds", "rounds", "", null, true), ...columns, users));
}

function heading(key, label, under, title, downFirst) {
  const order = state.sort !== key ? null : state.down === "1" ? "descending" : "ascending";
  const press = () =>
    change({ sort: key, down: order == null ? (downFirst ? "1" : "") : order === "descending" ? "" : "1" });
  const button = html("button", { type: "button", "data-sort": key, title, text: label, onclick: press });
  return html(
    "th",
    { scope: "col", "aria-sort": order ?? "none" },
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
      const cells = row.finals.map((cell, at) => finalElement(cell, metrics[at], best[at], row.runs.length));
      const users = state.mode === "runs" ? html("td", {}, usersButton(row.runs[0])) : null;
      return html("tr", {}, name, html("td", { text: lastRound(row.runs).toLocaleString("en") }), ...cells, users);
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
