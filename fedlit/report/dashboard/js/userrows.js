/** The users of one run in one round, as rows: what is known of each, and in which order. */

import { page } from "./data.js";
import { counted } from "./dom.js";
import { sortedBy } from "./finals.js";
import { plain, shown } from "./format.js";
import { mean } from "./series.js";
import { state } from "./state.js";

/** What the shown run is judged by; its columns are called acc_global, acc_local and acc_personal, whatever it is. */
let measure = { label: "accuracy", unit: "share", best: "max" };

/** From now on rows are read as this measure. */
export function judgeBy(given) {
  measure = given;
}

/** The measure of the shown run. */
export const judged = () => measure;

/** Whether the first value is better than the second. */
export const isBetter = (value, other) => (measure.best === "max" ? value > other : value < other);

/** Columns in the order of table and box; those that a run lacks are left out. What clients keep comes before the loss. */
function allColumns() {
  const { label, unit } = measure;
  const under = unit === "share" ? `${label}, %` : label;
  return [
    { name: "client", label: "client", unit: "" },
    { name: "group", label: "group", unit: "text" },
    { name: "size", label: "data size", under: "training samples", unit: "" },
    { name: "acc_global", label: "under z", under, unit },
    { name: "acc_local", label: "own x_i", under, unit },
    { name: "acc_personal", label: "personal", under, unit },
    { name: "gain", label: "own − z", under: unit === "share" ? "points" : label, unit: unit === "share" ? "points" : "" },
    { name: "weight", label: "weight", under: "coefficient", unit: "" },
    { name: "loss", label: "loss of z", unit: "" },
  ];
}

const LONG = {
  size: () => "data size",
  acc_global: () => `${measure.label} under z`,
  acc_local: () => `${measure.label} of own x_i`,
  acc_personal: () => `${measure.label} of personal model`,
  gain: () => "own − z",
  weight: () => "weight",
  loss: () => "loss of z",
  client: () => "client id",
  group: () => "group",
};

/** What a heading or an axis calls a column. */
export const longName = (name) => LONG[name]?.() ?? page.states[name] ?? name;

/** The columns that these records have. */
export function columnsOf(records) {
  const there = new Set(records.keys());
  if (there.has("acc_global") && there.has(ownOf(records))) there.add("gain");
  const kept = [...there].filter((name) => name in page.states);
  const states = kept.map((name) => ({ name, label: longName(name), unit: name.startsWith("acc_") ? "share" : "" }));
  const known = allColumns().filter((column) => there.has(column.name));
  const isLoss = (column) => column.name === "loss";
  return [...known.filter((column) => !isLoss(column)), ...states, ...known.filter(isLoss)];
}

/** Whether a column can stand as bars below the accuracies. */
export const hasBars = (name) => ["size", "weight", "loss"].includes(name) || name in page.states;

/** Which of the two own models is compared with z: the one chosen, else the one there is. */
export function ownOf(records) {
  return records.has(state.own) ? state.own : records.has("acc_personal") ? "acc_personal" : "acc_local";
}

/** One object for each user of the round at this position, in the chosen order. */
export function rowsAt(run, records, position) {
  const [from, to] = run.users.starts.slice(position, position + 2);
  const own = ownOf(records);
  const rows = Array.from({ length: to - from }, (_, at) => rowAt(run, records, from + at, own));
  return sortedBy(rows, (row) => row[state.by] ?? null, state.rising !== "1");
}

function rowAt(run, records, at, own) {
  const row = {};
  for (const [name, column] of records) row[name] = column[at];
  if ("group" in row) row.group = run.users.groups[row.group];
  row.own = row[own];
  row.gain = row.own - row.acc_global;
  return row;
}

/** A cell of the table. */
export const cellText = (row, { name, unit }) =>
  unit === "text" ? row[name] : name === "client" ? String(row[name]) : plain(unit, row[name]);

/** Rows of the box for one user. */
export function tipRows(row, columns) {
  const told = columns.filter(({ name }) => name !== "client" && row[name] != null && !Number.isNaN(row[name]));
  return told.map(({ name, unit }) => [
    null,
    longName(name),
    unit === "text" ? row[name] : shown(unit, row[name]),
    false,
  ]);
}

/** Who loses, in a sentence or two. */
export function factsOf(rows) {
  const known = rows.filter((row) => Number.isFinite(row.acc_global));
  if (!known.length) return `${counted(rows.length, "user")}; none was tested on data of its own.`;
  return `${worstText(known)} ${ownText(known.filter((row) => Number.isFinite(row.own)))}`;
}

/** Mean and worst tenth under z, and who is there: all of them, where several are equally bad. */
function worstText(known) {
  const values = known.map((row) => row.acc_global).sort((a, b) => (isBetter(b, a) ? -1 : isBetter(a, b) ? 1 : 0));
  const tenth = values.slice(0, Math.max(1, Math.floor(known.length / 10)));
  const edge = tenth.at(-1);
  const there = known
    .filter((row) => !isBetter(row.acc_global, edge))
    .map((row) => row.client)
    .sort((a, b) => a - b);
  const named = `${there.slice(0, 8).join(", ")}${there.length > 8 ? ` and ${there.length - 8} more` : ""}`;
  const { unit, best } = measure;
  const averages = `Mean under z ${shown(unit, mean(values))}, worst tenth ${shown(unit, mean(tenth))}.`;
  const where = best === "max" ? "below" : "above";
  return `${averages} ${counted(there.length, "user")} at or ${where} ${shown(unit, edge)}: ${named}.`;
}

function ownText(known) {
  if (!known.length) return "";
  const better = known.filter((row) => isBetter(row.own, row.acc_global)).length;
  const worse = known.filter((row) => isBetter(row.acc_global, row.own)).length;
  return `Own model better than z for ${better}, worse for ${worse} of ${counted(known.length, "user")}.`;
}
