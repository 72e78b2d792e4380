/** Min and max user as numbers: the same as fedlit/report/min_max.py, over as many rounds as the reader chooses. */

import { measured, mean, deviation, trailing } from "./series.js";

const NEAR = 0.1; // ten points
const ROUNDING = 1e-6; // of 32-bit floats
const USUAL = 10; // evaluated rounds that the numbers are means of where lines are as measured

/** Over how many of the last evaluated rounds numbers are taken. */
export const lastOf = (window) => (window > 1 ? window : USUAL);

/** The rounds in which both of a pair were measured, with both values. */
function both(run, { low, high }) {
  run.both ??= new Map();
  if (!run.both.has(low)) {
    const [lows, highs] = [measured(run, low), measured(run, high)];
    const highAt = new Map(highs.rounds.map((round, at) => [round, at]));
    const at = [...lows.rounds.keys()].filter((place) => highAt.has(lows.rounds[place]));
    const pick = (values) => at.map((place) => values[place]);
    run.both.set(low, {
      known: pick(lows.known),
      rounds: pick(lows.rounds),
      times: pick(lows.times),
      low: pick(lows.values),
      high: at.map((place) => highs.values[highAt.get(lows.rounds[place])]),
    });
  }
  return run.both.get(low);
}

const gaps = ({ low, high }) => low.map((value, at) => Math.abs(high[at] - value));

/** What `linesOf` draws of a pair, each value the mean of the last `window` ones: one of the two, or their distance. */
const quantity = (pair, name, window, valuesOf) => ({
  name,
  isIn: (run) => run.columns.includes(pair.low) && run.columns.includes(pair.high),
  of: (run) => ({ ...both(run, pair), values: trailing(valuesOf(both(run, pair)), window) }),
});
export const lowOf = (pair, window) => quantity(pair, pair.low, window, ({ low }) => low);
export const highOf = (pair, window) => quantity(pair, pair.high, window, ({ high }) => high);
export const gapOf = (pair, window) => quantity(pair, pair.gap, window, gaps);

/** The numbers of one run; null if the two were never measured in one round. */
function numbersOf(run, pair, last) {
  const known = both(run, pair);
  if (!known.rounds.length) return null;
  const apart = gaps(known);
  const near = apart.map((gap) => Number(gap <= NEAR + ROUNDING));
  const atTheEnd = (values) => mean(values.slice(-last));
  return {
    low: atTheEnd(known.low),
    high: atTheEnd(known.high),
    gap: atTheEnd(apart),
    near: atTheEnd(near),
    nearAlways: mean(near),
  };
}

/** The numbers of some runs: mean and standard deviation over them (null for one), by name; null where none has any. */
export function spreadsOf(runs, pair, last) {
  const each = runs.map((run) => numbersOf(run, pair, last)).filter(Boolean);
  if (!each.length) return null;
  const names = Object.keys(each[0]);
  const over = (name) => each.map((numbers) => numbers[name]);
  return Object.fromEntries(names.map((name) => [name, { mean: mean(over(name)), std: deviation(over(name)) }]));
}
