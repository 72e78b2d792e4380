/** Runs to lines: a metric of each run, or mean and standard deviation of a group. */

import { page } from "./data.js";
import { chosenRuns } from "./selection.js";
import { state } from "./state.js";
import { byTime, CLOCK, hasClock } from "./xaxis.js";

const MOST_STEPS = 1000; // of a mean by time: more cannot be seen

/** One line for each chosen group or run that has the metric; `at` are its places on the x axis. */
export function linesOf(name) {
  const runs = chosenRuns().filter((run) => run.columns.includes(name) && (!byTime() || hasClock(run)));
  if (state.mode === "runs") return runs.map((run) => runLine(run, name)).filter((line) => line.at.length);
  const members = page.groups.map((group) => runs.filter((run) => run.group === group.number));
  return members
    .filter((own) => own.length)
    .map((own) => ({ ...(byTime() ? meanByTime(own, name) : meanByRound(own, name)), of: own.length, ...look(own[0]) }))
    .filter((line) => line.at.length);
}

function look(run) {
  const { label, style } = page.groups[run.group];
  return { label, style };
}

/** One run; `others` are, for each place, the lowest and highest place on the other axis. */
function runLine(run, name) {
  const { rounds, times, values } = byTime() ? timed(run, name) : measured(run, name);
  const [at, others] = byTime() ? [times, rounds] : [rounds, times];
  const style = page.groups[run.group].style;
  return { at, values, others: others.map((other) => [other, other]), label: run.title, style, single: true, of: 1 };
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
      rounds: known.map((at) => rounds[at]),
      times: known.map((at) => clock?.[at] ?? NaN),
      values: known.map((at) => column[at]),
    });
  }
  return run.measured.get(name);
}

/** The same where the time is known too. */
function timed(run, name) {
  const { rounds, times, values } = measured(run, name);
  const known = [...times.keys()].filter((at) => Number.isFinite(times[at]));
  const [kept, when, what] = [rounds, times, values].map((column) => known.map((at) => column[at]));
  return { rounds: kept, times: when, values: what };
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
function meanByTime(runs, name) {
  const stairs = runs.map((run) => timed(run, name)).filter(({ times }) => times.length);
  const first = Math.max(...stairs.map(({ times }) => times[0]));
  const last = Math.min(...stairs.map(({ times }) => times.at(-1)));
  const every = [...new Set(stairs.flatMap(({ times }) => times))].sort((a, b) => a - b);
  const at = thinned(every.filter((time) => time >= first && time <= last));
  const places = stairs.map(({ times }) => placesIn(times, at));
  const held = (column) => at.map((_, step) => stairs.map((stair, run) => stair[column][places[run][step]]));
  return { ...spreadOf(held("values"), runs.length), at, others: held("rounds").map(extent) };
}

/** For each of these times, in order, the position of the last one that is not later. */
function placesIn(times, wanted) {
  let position = -1;
  return wanted.map((time) => {
    while (position + 1 < times.length && times[position + 1] <= time) position++;
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
