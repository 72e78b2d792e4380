/** The table of min and max user: a row for each group or run, what it has at the end, and the best of each column. */

import { page } from "./data.js";
import { counted, html, swatch } from "./dom.js";
import { csvButton } from "./download.js";
import { plainSpread } from "./format.js";
import { state } from "./state.js";

/** A table that `update` fills. */
export class GapTable {
  constructor(name) {
    this.table = html("table", { class: "gaps" });
    const scroll = { class: "scroll", tabindex: "0", role: "region", "aria-label": `Numbers of ${name}` };
    this.note = html("p", { class: "note muted" });
    this.element = html("div", {}, html("div", scroll, this.table), this.note);
    this.words = html("span");
    this.note.append(
      this.words,
      csvButton(() => this.told),
    );
  }

  /** `rows`: [members, numbers of gaps.js]; `pair` says what is measured, `last` over how many rounds. */
  update(rows, pair, last) {
    const columns = columnsOf(pair, last);
    const best = columns.map(({ key, best: way }) => bestOf(rows.map(([, numbers]) => numbers[key].mean), way));
    const heads = [html("th", { scope: "col", text: state.mode === "runs" ? "run" : "group" })];
    for (const { head, under } of columns)
      heads.push(html("th", { scope: "col", text: head }, html("small", { text: under })));
    const body = rows.map(([runs, numbers]) =>
      html(
        "tr",
        {},
        nameCell(runs),
        ...columns.map(({ key, unit }, at) => numberCell(unit, numbers[key], numbers[key].mean === best[at])),
      ),
    );
    this.table.replaceChildren(html("thead", {}, html("tr", {}, ...heads)), html("tbody", {}, ...body));
    this.words.textContent = `${noteOf(pair)} `;
    this.told = { name: pair.title, table: toldOf(rows, columns) };
  }
}

function columnsOf(pair, last) {
  const end = `last ${counted(last, "round")}`;
  const [low, high] = [pair.words[0], pair.words[1]];
  const unit = pair.unit === "share" ? "%, " : "";
  const apart = pair.unit === "share" ? "points, " : "";
  const all = [
    { key: "low", head: low, under: `${unit}${end}`, unit: pair.unit },
    { key: "high", head: high, under: `${unit}${end}`, unit: pair.unit },
    { key: "gap", head: "gap", under: `${apart}${end}`, unit: pair.unit === "share" ? "points" : "", best: "min" },
    { key: "near", head: "within ten points", under: `% of the ${end}`, unit: "share", best: "max" },
    { key: "nearAlways", head: "within ten points", under: "% of all rounds", unit: "share", best: "max" },
  ];
  return pair.unit === "share" ? all : all.slice(0, 3);
}

/** The best of what is known, unless all are alike. */
function bestOf(values, way) {
  if (!way || new Set(values).size < 2) return null;
  return way === "max" ? Math.max(...values) : Math.min(...values);
}

function nameCell(runs) {
  const group = page.groups[runs[0].group];
  const lengths = [...new Set(runs.map((run) => run.last))].sort((a, b) => a - b);
  const rounds = lengths.length > 1 ? `${lengths[0]} to ${lengths.at(-1)} rounds` : counted(lengths[0], "round");
  const label = state.mode === "runs" ? runs[0].title : group.label;
  const about = state.mode === "runs" ? rounds : `${counted(runs.length, "run")}, ${rounds}`;
  return html("td", {}, swatch(group.style), label, " ", html("small", { class: "muted", text: about }));
}

function numberCell(unit, { mean, std }, isBest) {
  const [value, spread] = rounded(unit, mean, std).split(" ± ");
  const around = spread == null ? null : html("span", { class: "spread", text: ` ± ${spread}` });
  return html("td", { class: isBest ? "best" : null }, value, around);
}

/** Shares and points with one decimal: more would be noise here. */
export function rounded(unit, mean, std) {
  if (unit !== "share" && unit !== "points") return plainSpread(unit, mean, std);
  return (100 * mean).toFixed(1) + (std == null ? "" : ` ± ${(100 * std).toFixed(1)}`);
}

function noteOf(pair) {
  const over = state.mode === "runs" ? "" : "Mean ± standard deviation over the runs of a group (n − 1). ";
  const near = pair.unit === "share" ? "A round is within ten points if its gap is at most ten. " : "";
  const gap = `Gap: |${pair.words[1]} − ${pair.words[0]}| in each evaluated round, then the mean. `;
  return `${over}${gap}${near}Bold: the best.`;
}

function toldOf(rows, columns) {
  const heads = columns.flatMap(({ head, under }) => [`${head} (${under})`, `${head} (${under}) std`]);
  const cells = rows.map(([runs, numbers]) => {
    const group = page.groups[runs[0].group];
    const label = state.mode === "runs" ? runs[0].title : group.label;
    const values = columns.flatMap(({ key }) => [numbers[key].mean, numbers[key].std]);
    return [group.data, label, runs.length, ...values];
  });
  return [["data", "label", "runs", ...heads], ...cells];
}
