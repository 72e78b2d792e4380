/** Which runs and metrics are chosen. A run counts if it passes the filters and is ticked. */

import { page } from "./data.js";
import { state } from "./state.js";

const MOST_GROUPS = 12; // of a data set that are drawn until the reader ticks others: more cannot be told apart
const USUAL = (name) => [`global/${name}`, "global/loss", `personal/${name}`, `users/${name}_var`];

/** What to say where nothing can be drawn. */
export function noRun() {
  if (page.runs.length) return "No run is chosen. Tick one or more under Runs, or clear the filters.";
  return "This page holds no runs. Write it again with 'fedlit dashboard RUNS', where RUNS is a folder with runs.";
}

/** Whether a run passes text, data sets, algorithms and seeds. */
export function passes(run) {
  const group = page.groups[run.group];
  if (state.data.length && !state.data.includes(group.data)) return false;
  if (state.algorithm.length && !state.algorithm.includes(group.algorithm)) return false;
  if (state.seed.length && !state.seed.includes(run.seed)) return false;
  const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
  return words.every((word) => searchText(run, group).includes(word));
}

function searchText(run, group) {
  run.searchText ??= [
    ...[group.label, group.data, run.name, run.path, `seed=${run.seed}`],
    ...Object.entries(group.options).map(([name, value]) => `${name}=${value}`),
  ]
    .join("\n")
    .toLowerCase();
  return run.searchText;
}

let first = { filters: null, groups: new Set() };

/** The numbers of the groups that are drawn until the reader ticks others: those that pass, of many the best. */
function firstGroups() {
  const filters = JSON.stringify([state.filter, state.data, state.algorithm, state.seed]);
  if (first.filters !== filters) first = { filters, groups: new Set(page.datasets.flatMap(bestOf)) };
  return first.groups;
}

function bestOf(data) {
  const passing = page.groups.filter((group) => group.data === data && group.runs.some(passes));
  const ranked = passing.toSorted((one, other) => one.rank - other.rank);
  return ranked.slice(0, MOST_GROUPS).map((group) => group.number);
}

/** Whether a run is ticked. */
export const ticked = (run) => (state.off ? !state.off.includes(run.key) : firstGroups().has(run.group));

/** The groups that pass the filters and are offered above the charts; all but those that many better ones hide. */
export function offeredGroups() {
  const passing = page.groups.filter((group) => group.runs.some(passes));
  const offered = passing.filter((group) => firstGroups().has(group.number) || group.runs.some(ticked));
  return { offered, hidden: passing.length - offered.length };
}

/** The runs that are drawn. */
export const chosenRuns = () => page.runs.filter((run) => ticked(run) && passes(run));

/** Those of a group's runs that are averaged: the finished ones, if there are any. */
export function averaged(runs) {
  const finished = runs.filter((run) => run.finished);
  return finished.length ? finished : runs;
}

/** Whether the page has more than one data set: then what is drawn or listed says which. */
export const isMixed = () => page.datasets.length > 1;

/** The runs of a data set among these. */
export const ofData = (runs, data) => runs.filter((run) => page.groups[run.group].data === data);

/** Tick or untick these runs. */
export function withTicks(runs, on) {
  const keys = new Set(runs.map((run) => run.key));
  const others = (state.off ?? usuallyOff()).filter((key) => !keys.has(key));
  const off = on ? others : [...others, ...keys];
  return { off: String(off.toSorted()) === String(usuallyOff().toSorted()) ? null : off };
}

const usuallyOff = () => page.runs.filter((run) => !firstGroups().has(run.group)).map((run) => run.key);

/** The metrics that are drawn, in the order of the catalogue. */
export function chosenMetrics() {
  const names = new Set(state.metrics ?? usualMetrics());
  return page.metrics.filter((metric) => names.has(metric.name));
}

/** Names of the metrics that a new reader sees. */
export function usualMetrics() {
  const usual = new Set(page.measures.flatMap(({ name }) => USUAL(name)));
  const there = [...usual].filter((name) => page.metricOf.has(name));
  return there.length ? there : page.metrics.slice(0, 4).map((metric) => metric.name);
}
