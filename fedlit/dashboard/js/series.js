/** Runs to lines: a metric of each run, or mean and standard deviation of a group. */

import { page } from "./data.js";
import { chosenRuns } from "./selection.js";
import { state } from "./state.js";

/** One line for each chosen group or run that has the metric. */
export function linesOf(name) {
  const runs = chosenRuns().filter((run) => run.columns.includes(name));
  if (state.mode === "runs") return runs.map((run) => runLine(run, name)).filter((line) => line.rounds.length);
  const members = page.groups.map((group) => runs.filter((run) => run.group === group.number));
  return members
    .filter((own) => own.length)
    .map((own) => groupLine(own, name))
    .filter((line) => line.rounds.length);
}

function runLine(run, name) {
  return {
    ...measured(run, name),
    label: run.title,
    style: page.groups[run.group].style,
    single: true,
    std: null,
    of: 1,
  };
}

/** Rounds and values of one metric, where it was measured and is finite. */
export function measured(run, name) {
  run.measured ??= new Map();
  if (!run.measured.has(name)) {
    const column = run.values.get(name);
    const known = [...column.keys()].filter((position) => Number.isFinite(column[position]));
    const rounds = run.values.get("round");
    run.measured.set(name, { rounds: known.map((at) => rounds[at]), values: known.map((at) => column[at]) });
  }
  return run.measured.get(name);
}

function groupLine(runs, name) {
  const byRound = new Map();
  for (const { rounds, values } of runs.map((run) => measured(run, name))) {
    rounds.forEach((round, at) => (byRound.get(round) ?? byRound.set(round, []).get(round)).push(values[at]));
  }
  const rounds = [...byRound.keys()].sort((a, b) => a - b);
  const samples = rounds.map((round) => byRound.get(round));
  const group = page.groups[runs[0].group];
  return {
    ...{ rounds, values: samples.map(mean), label: group.label, style: group.style },
    ...{
      std: runs.length > 1 ? samples.map(deviation) : null,
      counts: samples.map((values) => values.length),
      of: runs.length,
    },
  };
}

/** The plain mean. */
export const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/** The sample standard deviation (n − 1); of one value it is unknown. */
export function deviation(values) {
  if (values.length < 2) return null;
  const middle = mean(values);
  return Math.sqrt(values.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (values.length - 1));
}

/** A centred moving average over `width` points, fewer at the ends. */
export function smoothed(values, width) {
  if (width <= 1) return values;
  const reach = Math.floor(width / 2);
  return values.map((_, at) => mean(values.slice(Math.max(0, at - reach), at + reach + 1)));
}

/** The newest value of a metric in a run, or null. */
export function finalOf(run, name) {
  return run.columns.includes(name) ? (measured(run, name).values.at(-1) ?? null) : null;
}
