/** Two groups of runs user by user: which runs are pairs, and what each user has under one and under the other. */

import { page, usersOf } from "./data.js";
import { counted } from "./dom.js";
import { shown } from "./format.js";
import { averaged, chosenRuns } from "./selection.js";
import { mean } from "./series.js";

export const ACCURACIES = {
  acc_personal: "personal model",
  acc_local: "own x_i after its training",
  acc_global: "server's model z",
};

/** The groups that can be compared: those of which a chosen run has records of its users' accuracies. */
export const comparable = () => page.groups.filter((group) => runsOf(group).length);

const runsOf = (group) =>
  averaged(chosenRuns().filter((run) => run.group === group.number && run.users?.measure.unit === "share"));

/** What the address calls a group. */
export const keyOf = (group) => group.runs[0].key;

/** Runs of the two with the same seed and the same partition: only there is a user the same in both. */
export function pairsOf(first, second) {
  const isTwin = (a, b) => a.seed === b.seed && a.partition === b.partition;
  return runsOf(first).flatMap((a) => {
    const b = runsOf(second).find((other) => isTwin(a, other));
    return b ? [[a, b]] : [];
  });
}

/** A point for each user that was tested in both runs of a pair, means over the pairs, the largest gain first. */
export async function pointsOf(pairs, column) {
  const users = new Map();
  for (const [a, b] of pairs) {
    const under = new Map((await lastRows(b, column)).map((row) => [row.client, row.value]));
    for (const { client, size, value } of await lastRows(a, column)) {
      const other = under.get(client);
      if (!Number.isFinite(value) || !Number.isFinite(other)) continue;
      const key = `${a.partition} ${client}`; // clients of another partition are other users
      const user = users.get(key) ?? users.set(key, { client, size, a: [], b: [] }).get(key);
      user.a.push(value);
      user.b.push(other);
    }
  }
  const points = [...users.values()].map((user) => ({ ...user, a: mean(user.a), b: mean(user.b) }));
  return points.map((point) => ({ ...point, gain: point.b - point.a })).sort((p, q) => q.gain - p.gain);
}

/** Id, data size and one accuracy of every user in the last round of a run that the page has records of. */
async function lastRows(run, column) {
  const records = await usersOf(run);
  const [from, to] = run.users.starts.slice(-2);
  const at = (name, row) => records.get(name)?.[row] ?? NaN;
  return Array.from({ length: to - from }, (_, row) => ({
    client: at("client", from + row),
    size: at("size", from + row),
    value: at(column, from + row),
  }));
}

/** Who gains, in a few sentences. */
export function gainsText(points, first, second) {
  const gain = points.filter((point) => point.gain > 0).length;
  const loss = points.filter((point) => point.gain < 0).length;
  const same = points.length - gain - loss;
  const column = (name) => points.map((point) => point[name]);
  const [a, b] = [column("a"), column("b")];
  const difference = 100 * (mean(b) - mean(a));
  const lowest = (values) => shown("share", Math.min(...values));
  return [
    `Of ${counted(points.length, "user")}, ${gain} gain under ${second.label}, ${loss} lose, ${same} stay the same.`,
    `Mean ${shown("share", mean(a))} under ${first.label}, ${shown("share", mean(b))} under ${second.label}` +
      ` (${difference < 0 ? "−" : "+"}${Math.abs(difference).toFixed(2)} points).`,
    `Worst user ${lowest(a)} and ${lowest(b)}.`,
  ].join(" ");
}
