/** Runs to lines: a metric of each run, or mean and standard deviation of a group. */

import { page } from "./data.js";
import { chosenRuns, ofData } from "./selection.js";
import { state } from "./state.js";
import { CLOCK, isOn, xAxis } from "./xaxis.js";

const MOST_STEPS = 1000; // of a mean of staircases: more cannot be seen

/** One line for each chosen group or run of a data set that has the metric; `at` are its places on the x axis. */
export function linesOf(name, data) {
  const axis = xAxis();
  const runs = ofData(chosenRuns(), data).filter((run) => run.columns.includes(name) && isOn(run, axis));
  const members =
    state.mode === "runs"
      ? runs.map((run) => [run])
      : page.groups.map((group) => runs.filter((run) => run.group === group.number)).filter((own) => own.length);
  const lineOf = state.mode === "runs" ? ([run]) => runLine(run, name, axis) : (own) => groupLine(own, name, axis);
  return members
    .map((own) => ({ ...lineOf(own), metric: name, of: own.length, style: page.groups[own[0].group].style }))
    .filter((line) => line.at.length);
}

function groupLine(runs, name, axis) {
  const mean = axis.stepped ? meanOfStairs(runs, name, axis) : meanByRound(runs, name);
  return { ...mean, label: page.groups[runs[0].group].label };
}

/** One run; `others` are, for each place, the lowest and highest place on the other axis. */
function runLine(run, name, axis) {
  const { rounds, times, places, values } = axis.stepped ? placed(run, name, axis) : measured(run, name);
  const [at, others] = axis.stepped ? [places, rounds] : [rounds, times];
  return { at, values, others: others.map((other) => [other, other]), label: run.title, single: true };
}

/** Rounds, simulated times (NaN without a clock) and values of one metric, where it was measured and is finite. */
export function measured(run, name) {
  run.measured ??= new Map();
  if (!run.measured.has(name)) {
    const column = run.values.get(name);
    const clock = run.values.get(CLOCK);
    const known = [...column.keys()].filter((position) => Number.isFinite(column[position]));
    const rounds = run.values.get("round");
    run.measured.set(name, {
      known,
      rounds: known.map((at) => rounds[at]),
      times: known.map((at) => clock?.[at] ?? NaN),
      values: known.map((at) => column[at]),
    });
  }
  return run.measured.get(name);
}

/** Places on an axis, rounds and values of one metric, where all are known. */
function placed(run, name, axis) {
  const { known, rounds, values } = measured(run, name);
  const column = run.values.get(axis.column);
  const kept = [...known.keys()].filter((at) => Number.isFinite(column[known[at]]));
  return {
    places: kept.map((at) => column[known[at]]),
    rounds: kept.map((at) => rounds[at]),
    values: kept.map((at) => values[at]),
  };
}

function meanByRound(runs, name) {
  const byRound = new Map();
  for (const { rounds, times, values } of runs.map((run) => measured(run, name))) {
    rounds.forEach((round, at) => {
      const own = byRound.get(round) ?? byRound.set(round, { values: [], times: [] }).get(round);
      own.values.push(values[at]);
      own.times.push(times[at]);
    });
  }
  const at = [...byRound.keys()].sort((a, b) => a - b);
  const samples = at.map((round) => byRound.get(round));
  return {
    ...spreadOf(samples.map(({ values }) => values), runs.length),
    at,
    others: samples.map(({ times }) => extent(times)),
    counts: samples.map(({ values }) => values.length),
  };
}

/** Staircases: each value holds until the run's next one. The mean steps where any of them does, while all last. */
function meanOfStairs(runs, name, axis) {
  const stairs = runs.map((run) => placed(run, name, axis)).filter(({ places }) => places.length);
  const first = Math.max(...stairs.map(({ places }) => places[0]));
  const last = Math.min(...stairs.map(({ places }) => places.at(-1)));
  const every = [...new Set(stairs.flatMap(({ places }) => places))].sort((a, b) => a - b);
  const at = thinned(every.filter((place) => place >= first && place <= last));
  const steps = stairs.map(({ places }) => positionsIn(places, at));
  const held = (column) => at.map((_, step) => stairs.map((stair, run) => stair[column][steps[run][step]]));
  return { ...spreadOf(held("values"), runs.length), at, others: held("rounds").map(extent) };
}

/** For each wanted place, in order, the position of the last one that is not later. */
function positionsIn(places, wanted) {
  let position = -1;
  return wanted.map((place) => {
    while (position + 1 < places.length && places[position + 1] <= place) position++;
    return position;
  });
}

/** At most MOST_STEPS of them, evenly spaced, the first and the last among them. */
function thinned(places) {
  if (places.length <= MOST_STEPS) return places;
  const stride = (places.length - 1) / (MOST_STEPS - 1);
  return Array.from({ length: MOST_STEPS }, (_, number) => places[Math.round(number * stride)]);
}

const extent = (values) => [Math.min(...values), Math.max(...values)];

const spreadOf = (samples, runs) => ({ values: samples.map(mean), std: runs > 1 ? samples.map(deviation) : null });

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
