/** The view of two groups of runs user by user: who gains under the second, and who loses. */

import { byData, fillSelect, groupedOptions } from "./choices.js";
import { counted, html } from "./dom.js";
import { downloads } from "./download.js";
import { plain } from "./format.js";
import { PairChart, discSign } from "./pairchart.js";
import { ACCURACIES, comparable, gainsText, keyOf, pairsOf, pointsOf } from "./pairrows.js";
import { chosenRuns, isMixed, noRun } from "./selection.js";
import { change, state } from "./state.js";

const MOST_ROWS = 500;
const parts = {}; // built once: what the reader holds keeps its focus

/** Compare the two chosen groups, as soon as the records of their users are unpacked. */
export async function showPairs(view) {
  const two = chosenTwo();
  if (!two) return view.replaceChildren(html("p", { class: "empty card", text: nothing() }));
  const [first, second] = two;
  const pairs = pairsOf(first, second);
  const column = accuracyOf(pairs);
  const points = await pointsOf(pairs, column);
  if (state.tab !== "pairs" || String(chosenTwo()?.map(keyOf)) !== String(two.map(keyOf))) return undefined; // went on
  build();
  updateControls(first, second, pairs, column);
  parts.result.hidden = !points.length;
  parts.facts.textContent = points.length ? gainsText(points, first, second) : unpaired(pairs);
  parts.note.textContent = points.length ? noteOf(pairs, points) : "";
  updateTable(points, first, second);
  if (view.firstElementChild !== parts.whole) view.replaceChildren(parts.whole);
  parts.chart.update(points, first, second); // it has a width only now
  return undefined;
}

/** The groups of the address, else the first ones: both of one data set. */
function chosenTwo() {
  const groups = comparable();
  const mates = (group) => groups.filter((other) => other !== group && other.data === group.data);
  const paired = groups.filter((group) => mates(group).length);
  const first = paired.find((group) => keyOf(group) === state.a) ?? paired[0];
  if (!first) return null;
  return [first, mates(first).find((group) => keyOf(group) === state.b) ?? mates(first)[0]];
}

/** The chosen accuracy if both sides have it, else another one. */
function accuracyOf(pairs) {
  const columns = pairs.flat().map((run) => run.users.columns);
  const there = Object.keys(ACCURACIES).filter((name) => columns.every((own) => own.includes(name)));
  return there.includes(state.acc) ? state.acc : (there[0] ?? state.acc);
}

function nothing() {
  if (!chosenRuns().length) return noRun();
  const measures = chosenRuns().flatMap((run) => run.users?.measure ?? []);
  const others = new Set(measures.filter(({ unit }) => unit !== "share").map(({ label }) => label));
  if (others.size)
    return `Users are compared here by accuracies, but these runs measure ${[...others].join(" and ")}. See the view Users.`;
  return (
    "Two groups of one data set are compared here by their users' accuracies, and both need records of their clients. " +
    "Choose more runs, or run another algorithm on the same data."
  );
}

function unpaired(pairs) {
  if (pairs.length) return "No user was tested on data of its own in both.";
  return (
    "These two have no runs with the same seed and the same partition, so no user is in both. " +
    "'fedlit compare' makes such runs."
  );
}

function build() {
  if (parts.whole) return;
  parts.a = html("select", { id: "pair-a", onchange: () => change({ a: parts.a.value }) });
  parts.b = html("select", { id: "pair-b", onchange: () => change({ a: keyOf(chosenTwo()[0]), b: parts.b.value }) });
  parts.swap = html("button", { type: "button", id: "pair-swap", text: "⇄ swap", onclick: swap });
  parts.acc = html("select", { id: "pair-acc", onchange: () => change({ acc: parts.acc.value }) });
  parts.facts = html("p", { class: "facts", id: "pair-facts" });
  parts.data = html("p", { class: "data" });
  parts.chart = new PairChart(caption(), markRow);
  parts.head = html("thead");
  parts.body = html("tbody");
  parts.note = html("p", { class: "note muted" });
  const table = html("table", { class: "users" }, parts.head, parts.body);
  const scroll = html("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Users" }, table);
  const toolbar = html(
    "div",
    { class: "toolbar" },
    html("label", {}, "From", parts.a),
    html("label", {}, "to", parts.b),
    parts.swap,
    html("label", {}, "Accuracy of", parts.acc),
  );
  parts.result = html("div", { class: "side-by-side" }, parts.chart.element, scroll);
  parts.whole = html("div", {}, toolbar, parts.facts, parts.result, parts.note);
}

function caption() {
  const about = "a disc for each user, as large as its data; on the diagonal both are equal";
  parts.key = html("p", { class: "key" });
  const heading = html("h2", { text: "user by user" });
  const words = html("div", { class: "words" }, heading, parts.data, html("small", { text: about }), parts.key);
  return html(
    "figcaption",
    {},
    words,
    downloads(() => parts.chart.told()),
  );
}

function swap() {
  const [first, second] = chosenTwo();
  change({ a: keyOf(second), b: keyOf(first) });
}

function updateControls(first, second, pairs, column) {
  const groups = comparable();
  const named = (group) => [keyOf(group), group.label];
  groupedOptions(parts.a, byData(groups, (group) => group).map(([data, own]) => [data, own.map(named)]), keyOf(first));
  const mates = groups.filter((group) => group.data === first.data && group !== first);
  fillSelect(parts.b, mates.map(named), keyOf(second));
  const there = (name) => pairs.every((pair) => pair.every((run) => run.users.columns.includes(name)));
  fillSelect(
    parts.acc,
    Object.entries(ACCURACIES).filter(([name]) => there(name)),
    column,
  );
  const signs = [
    [second.style.tone, `better under ${second.label}`],
    [first.style.tone, `better under ${first.label}`],
    ["same", "equal"],
  ];
  parts.key.replaceChildren(...signs.map(([kind, text]) => html("span", {}, discSign(kind), text)));
  parts.data.textContent = isMixed() ? first.data : "";
}

function updateTable(points, first, second) {
  const breakable = (label) => label.replaceAll("=", "=\u200b"); // a long option is broken, not cut
  const heads = ["client", "data size", breakable(first.label), breakable(second.label), "gain, points"];
  parts.head.replaceChildren(html("tr", {}, ...heads.map((text) => html("th", { scope: "col", text }))));
  parts.body.replaceChildren(...points.slice(0, MOST_ROWS).map(row));
}

function row({ client, size, a, b, gain }) {
  const texts = [String(client), plain("", size), plain("share", a), plain("share", b), plain("points", gain)];
  return html("tr", {}, ...texts.map((text) => html("td", { text })));
}

/** The row of the user that the pointer is on. */
function markRow(position) {
  [...parts.body.children].forEach((row, at) => row.classList.toggle("near", at === position));
}

function noteOf(pairs, points) {
  const seeds = pairs.map(([a]) => a.seed).join(", ");
  const rounds = [...new Set(pairs.flat().map((run) => run.users.rounds.at(-1)))].sort((a, b) => a - b);
  const sentences = [
    pairs.length > 1
      ? `Means over ${counted(pairs.length, "pair")} of runs with the seeds ${seeds}.`
      : `Seed ${seeds}.`,
    `Each user in the last evaluated round of a run: ${rounds.join(", ")}.`,
    rounds.length > 1 && "The runs ended in different rounds.",
    points.length > MOST_ROWS && `The table shows the first ${MOST_ROWS} users; the file has all.`,
  ];
  return sentences.filter(Boolean).join(" ");
}
