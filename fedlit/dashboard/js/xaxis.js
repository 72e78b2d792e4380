/** What curves are drawn against: rounds, or simulated time where runs have a clock; and how each speaks of itself. */

import { page } from "./data.js";
import { plain, shown, tickText } from "./format.js";
import { state } from "./state.js";

export const CLOCK = "time/sim_s";

const seconds = (value) => shown("s", value);

const ROUND = {
  label: "round",
  name: "round",
  places: "rounds",
  stepped: false, // between two rounds nothing is known
  leastStep: 1,
  tick: (value) => value.toLocaleString("en"),
  fitted: Math.round,
  heading: (round) => `Round ${round.toLocaleString("en")}`,
  range: ([first, last]) => `Rounds ${first} to ${last}`,
  other: ([low, high]) => (low === high ? `at ${seconds(low)}` : `at ${plain("s", low)} to ${seconds(high)}`),
};

const TIME = {
  label: "simulated time",
  name: "simulated time (s)",
  places: "times",
  stepped: true, // a value holds until the next one was measured
  leastStep: 0,
  tick: (value, step) => tickText("s", value, step),
  fitted: (value) => Number(value.toPrecision(6)),
  heading: (time) => `At ${seconds(time)}`,
  range: ([first, last]) => `${plain("s", first)} to ${seconds(last)}`,
  other: ([low, high]) => (low === high ? `round ${low}` : `rounds ${low} to ${high}`),
};

/** Whether a run has simulated times. */
export const hasClock = (run) => run.columns.includes(CLOCK);

/** Whether curves are drawn by simulated time. */
export const byTime = () => state.x === "time" && page.runs.some(hasClock);

/** The axis that the reader has chosen. */
export const xAxis = () => (byTime() ? TIME : ROUND);
