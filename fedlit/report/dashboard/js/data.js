/** The data of the page: the index at once, the numbers of a run when they are first needed. */

import { byId } from "./dom.js";

const INTEGERS = new Set(["round", "client", "size", "group"]);
const DASHES = [null, "7 3", "2 3", "9 3 2 3", "14 3"];

export const page = {
  runs: [],
  groups: [],
  datasets: [],
  abouts: {},
  metrics: [],
  measures: [],
  states: {},
  remarks: [],
};

/** Read the index, and the metrics of every run. */
export async function readPage() {
  Object.assign(page, JSON.parse(byId("index").textContent));
  page.metricOf = new Map(page.metrics.map((metric) => [metric.name, metric]));
  page.groups.forEach((group, number) => {
    group.number = number;
    group.style = { tone: `tone-${group.look.tone}`, dash: DASHES[group.look.dash] };
    group.runs = [];
  });
  await Promise.all(page.runs.map(readRun));
  page.runs.forEach((run) => page.groups[run.group].runs.push(run));
}

async function readRun(run) {
  run.values = await unpacked(`metrics-${run.key}`, ["round", ...run.columns, ...run.totals], run.kept);
}

/** The client records of a run: columns over all rows, and where each round begins. */
export function usersOf(run) {
  run.reading ??= unpacked(`users-${run.key}`, run.users.columns, run.users.starts.at(-1));
  return run.reading;
}

async function unpacked(id, names, length) {
  const buffer = await inflated(byId(id).textContent);
  const columns = names.map((name, position) => {
    const Kind = INTEGERS.has(name) ? Int32Array : Float32Array;
    return [name, new Kind(buffer, 4 * length * position, length)];
  });
  return new Map(columns);
}

async function inflated(base64) {
  const raw = atob(base64);
  const bytes = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at++) bytes[at] = raw.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(stream).arrayBuffer();
}
