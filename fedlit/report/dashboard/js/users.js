/** The view of one run's users: who has how much data, and what accuracy, in a chosen round. */

import { byData, fillSelect, groupedOptions } from "./choices.js";
import { page, usersOf } from "./data.js";
import { html } from "./dom.js";
import { downloads } from "./download.js";
import { chosenRuns, isMixed, noRun } from "./selection.js";
import { change, state } from "./state.js";
import { UserChart } from "./userchart.js";
import { cellText, columnsOf, factsOf, judgeBy, longName, ownOf, rowsAt } from "./userrows.js";

const MOST_ROWS = 500;
const OWN = { acc_local: "own x_i after its training", acc_personal: "personal model" };
const parts = {}; // built once: what the reader holds keeps its focus

/** Show the users of the chosen run, as soon as its records are unpacked. */
export async function showUsers(view) {
  const run = shownRun();
  if (!run) return view.replaceChildren(html("p", { class: "empty card", text: nothing() }));
  const records = await usersOf(run);
  if (state.tab !== "users" || run !== shownRun()) return undefined; // the reader went on meanwhile
  build();
  judgeBy(run.users.measure);
  const position = positionOf(run);
  const columns = columnsOf(records);
  if (!columns.some((column) => column.name === state.by))
    state.by = columns.find((column) => column.name === "size")?.name ?? columns[0].name;
  const rows = rowsAt(run, records, position);
  updateControls(run, position, columns, records);
  const { data } = page.groups[run.group];
  parts.facts.textContent = isMixed() ? `${data}: ${factsOf(rows)}` : factsOf(rows);
  const title = `users of ${run.title}, round ${run.users.rounds[position]}`;
  parts.chart.update(rows, columns, OWN[ownOf(records)] ?? "own model", isMixed() ? `${title}, ${data}` : title);
  updateTable(rows, columns);
  parts.note.textContent = noteOf(run, rows);
  if (view.firstElementChild !== parts.whole) view.replaceChildren(parts.whole);
  parts.chart.draw(); // it has a width only now
  return undefined;
}

const withUsers = () => chosenRuns().filter((run) => run.users);

/** The run of the address, else the first chosen one. */
export function shownRun() {
  return page.runs.find((run) => run.key === state.run && run.users) ?? withUsers()[0];
}

function nothing() {
  if (!chosenRuns().length) return noRun();
  return (
    "None of the chosen runs has records of its clients. They are written in evaluated rounds: " +
    "choose another run, or continue this one with 'fedlit fit … --resume'."
  );
}

function positionOf(run) {
  const { rounds } = run.users;
  if (state.round < 0) return rounds.length - 1;
  return rounds.reduce(
    (best, round, at) => (Math.abs(round - state.round) < Math.abs(rounds[best] - state.round) ? at : best),
    0,
  );
}

function build() {
  if (parts.whole) return;
  parts.run = html("select", { id: "user-run", onchange: () => change({ run: parts.run.value }) });
  parts.slider = html("input", { id: "user-round", type: "range", min: 0, step: 1, oninput: slide });
  parts.round = html("output", { for: "user-round" });
  parts.by = html("select", { id: "user-sort", onchange: () => sortBy(parts.by.value) });
  parts.direction = html("button", {
    type: "button",
    id: "user-direction",
    onclick: () => change({ rising: state.rising ? "" : "1" }),
  });
  parts.own = html("select", { id: "user-own", onchange: () => change({ own: parts.own.value }) });
  parts.ownLabel = html("label", {}, "Own model", parts.own);
  parts.facts = html("p", { class: "facts", id: "user-facts" });
  parts.chart = new UserChart(
    downloads(() => parts.chart.told()),
    markRow,
  );
  parts.head = html("thead");
  parts.body = html("tbody");
  parts.note = html("p", { class: "note muted" });
  const sort = html("label", {}, "Sort by", parts.by);
  const first = html(
    "div",
    { class: "toolbar" },
    html("label", {}, "Run", parts.run),
    html("label", { class: "round" }, "Round", parts.slider, parts.round),
  );
  const second = html(
    "div",
    { class: "toolbar" },
    html("div", { class: "pair" }, sort, parts.direction),
    parts.ownLabel,
  );
  const table = html(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Users" },
    html("table", { class: "users" }, parts.head, parts.body),
  );
  parts.whole = html(
    "div",
    {},
    first,
    second,
    parts.facts,
    parts.chart.element,
    html("div", { class: "note" }),
    table,
    parts.note,
  );
}

function slide() {
  const { rounds } = shownRun().users;
  const position = Number(parts.slider.value);
  change({ round: position === rounds.length - 1 ? -1 : rounds[position] });
}

function sortBy(name) {
  const again = name === state.by;
  change({ by: name, rising: again ? (state.rising ? "" : "1") : name === "client" || name === "group" ? "1" : "" });
}

function updateControls(run, position, columns, records) {
  const runs = withUsers().includes(run) ? withUsers() : [run, ...withUsers()];
  const grouped = byData(runs, (other) => page.groups[other.group]);
  groupedOptions(
    parts.run,
    grouped.map(([data, own]) => [data, own.map((other) => [other.key, other.title])]),
    run.key,
  );
  fillSelect(
    parts.by,
    columns.map(({ name }) => [name, longName(name)]),
    state.by,
  );
  fillSelect(
    parts.own,
    Object.entries(OWN).filter(([name]) => records.has(name)),
    ownOf(records),
  );
  parts.ownLabel.hidden = parts.own.options.length < 2;
  parts.slider.max = run.users.rounds.length - 1;
  parts.slider.value = position;
  parts.slider.setAttribute("aria-valuetext", `round ${run.users.rounds[position]}`);
  parts.round.textContent = `${run.users.rounds[position]} of ${run.users.rounds.at(-1)}`;
  parts.direction.textContent = state.rising ? "↑ rising" : "↓ falling";
}

function updateTable(rows, columns) {
  const focused = document.activeElement?.dataset?.column;
  parts.head.replaceChildren(html("tr", {}, ...columns.map(heading)));
  parts.body.replaceChildren(
    ...rows
      .slice(0, MOST_ROWS)
      .map((row) => html("tr", {}, ...columns.map((column) => html("td", { text: cellText(row, column) })))),
  );
  if (focused) parts.head.querySelector(`[data-column="${CSS.escape(focused)}"]`)?.focus();
}

function heading({ name, label, under }) {
  const order = state.by !== name ? "none" : state.rising ? "ascending" : "descending";
  const button = html("button", { type: "button", "data-column": name, text: label, onclick: () => sortBy(name) });
  return html("th", { scope: "col", "aria-sort": order }, button, under ? html("small", { text: under }) : null);
}

/** The row of the user that the pointer is on. */
function markRow(position) {
  [...parts.body.children].forEach((row, at) => row.classList.toggle("near", at === position));
}

function noteOf(run, rows) {
  const { rounds, evaluated } = run.users;
  const kept = `${rounds.length} of the ${evaluated.toLocaleString("en")} evaluated rounds`;
  const cut = `The table shows the first ${MOST_ROWS} of ${rows.length.toLocaleString("en")} users in this order.`;
  const sentences = [
    rounds.length < evaluated &&
      `For each user this file holds ${kept}, evenly spaced, the first and the last among them.`,
    rows.length > MOST_ROWS && cut,
    "A weight is empty for users outside the round's cohort. Press a heading to sort.",
  ];
  return sentences.filter(Boolean).join(" ");
}
