/** Runs to lines: a metric of each run, or mean and standard deviation of a group. */

import { page } from "./data.js";
import { averaged, chosenRuns, ofData } from "./selection.js";
import { state } from "./state.js";
import { CLOCK, isOn, xAxis } from "./xaxis.js";

const MOST_STEPS = 1000; // of a mean of staircases: more cannot be seen

/** A metric as `linesOf` takes it: its name, whether a run has it, and its values there, as `measured` gives them. */
export const plainMetric = (name) => ({
  name,
  isIn: (run) => run.columns.includes(name),
  of: (run) => measured(run, name),
});

/** The same, each value the mean of so many measured ones: its own and those before it. */
export const trailingMetric = (name, window) => ({
  ...plainMetric(name),
  of: (run) => ({ ...measured(run, name), values: trailing(measured(run, name).values, window) }),
});

/** The runs behind each line: those of a group that are averaged, or one. */
export function membersOf(quantity, data, isShown = () => true) {
  const runs = ofData(chosenRuns(), data).filter((run) => quantity.isIn(run) && isShown(run));
  if (state.mode === "runs") return runs.map((run) => [run]);
  const ofGroup = (group) => averaged(runs.filter((run) => run.group === group.number));
  return page.groups.map(ofGroup).filter((own) => own.length);
}

/** One line for each chosen group or run of a data set that has the metric; `at` are its places on the x axis. */
export function linesOf(quantity, data) {
  const axis = xAxis();
  const lineOf = (own) => (state.mode === "runs" ? runLine(own[0], quantity, axis) : groupLine(own, quantity, axis));
  const styleOf = (own) => page.groups[own[0].group].style;
  const common = (own) => ({ metric: quantity.name, runs: own, of: own.length, style: styleOf(own) });
  return membersOf(quantity, data, (run) => isOn(run, axis))
    .map((own) => ({ ...lineOf(own), ...common(own) }))
    .filter((line) => line.at.length);
}

function groupLine(runs, quantity, axis) {
  const mean = axis.stepped ? meanOfStairs(runs, quantity, axis) : meanByRound(runs, quantity);
  return { ...mean, label: page.groups[runs[0].group].label };
}

/** One run; `others` are, for each place, the lowest and highest place on the other axis. */
function runLine(run, quantity, axis) {
  const { rounds, times, places, values } = axis.stepped ? placed(run, quantity, axis) : quantity.of(run);
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
function placed(run, quantity, axis) {
  const { known, rounds, values } = quantity.of(run);
  const column = run.values.get(axis.column);
  const kept = [...known.keys()].filter((at) => Number.isFinite(column[known[at]]));
  return {
    places: kept.map((at) => column[known[at]]),
    rounds: kept.map((at) => rounds[at]),
    values: kept.map((at) => values[at]),
  };
}

function meanByRound(runs, quantity) {
  const byRound = new Map();
  for (const { rounds, times, values } of runs.map((run) => quantity.of(run))) {
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
function meanOfStairs(runs, quantity, axis) {
  const stairs = runs.map((run) => placed(run, quantity, axis)).filter(({ places }) => places.length);
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

/** Of each value and those before it, at most `width` of them, the mean. */
export function trailing(values, width) {
  if (width <= 1) return values;
  return values.map((_, at) => mean(values.slice(Math.max(0, at - width + 1), at + 1)));
}

/** The newest value of a metric in a run, or null. */
export function finalOf(run, name) {
  return run.columns.includes(name) ? (measured(run, name).values.at(-1) ?? null) : null;
}
