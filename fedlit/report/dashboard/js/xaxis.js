/** What curves are drawn against: rounds, or what a run has spent until then; and how each speaks of itself. */

import { page } from "./data.js";
import { plain, shown, tickText } from "./format.js";
import { state } from "./state.js";

export const CLOCK = "time/sim_s";

const seconds = (value) => shown("s", value);
const whole = (value) => Math.round(value).toLocaleString("en");
const rounds = ([low, high]) => (low === high ? `round ${low}` : `rounds ${low} to ${high}`);

const ROUND = {
  key: "round",
  column: null,
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

/** Along what a run spends, a value holds until the next one was measured. */
const SPENT = { stepped: true, leastStep: 0, fitted: (value) => Number(value.toPrecision(6)), other: rounds };

const AXES = [
  ROUND,
  {
    ...SPENT,
    key: "time",
    column: CLOCK,
    label: "simulated time",
    name: "simulated time (s)",
    places: "times",
    without: "a clock",
    tick: (value, step) => tickText("s", value, step),
    heading: (time) => `At ${seconds(time)}`,
    range: ([first, last]) => `${plain("s", first)} to ${seconds(last)}`,
  },
  {
    ...SPENT,
    key: "steps",
    column: "Σ steps",
    label: "client steps",
    name: "client steps (all clients)",
    places: "numbers of steps",
    without: "a count of client steps",
    leastStep: 1,
    tick: whole,
    heading: (steps) => `After ${whole(steps)} client steps`,
    range: ([first, last]) => `${whole(first)} to ${whole(last)} client steps`,
  },
  {
    ...SPENT,
    key: "mb",
    column: "Σ MB",
    label: "MB sent",
    name: "MB sent (up and down)",
    places: "amounts",
    without: "a count of bytes",
    tick: (value, step) => tickText("MB", value, step),
    heading: (amount) => `After ${shown("MB", amount)}`,
    range: ([first, last]) => `${plain("MB", first)} to ${shown("MB", last)}`,
  },
];

/** Whether a run has places on an axis. */
export const isOn = (run, axis) => axis.column == null || run.values.has(axis.column);

/** The axes that any run of the page has places on. */
export const offeredAxes = () => AXES.filter((axis) => axis === ROUND || page.runs.some((run) => isOn(run, axis)));

/** The axis that the reader has chosen. */
export const xAxis = () => offeredAxes().find((axis) => axis.key === state.x) ?? ROUND;
