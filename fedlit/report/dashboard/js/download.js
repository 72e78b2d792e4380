/** What is shown as a file: a chart as SVG, its numbers as CSV. */

import { html } from "./dom.js";
import { standalone } from "./standalone.js";

const DIGITS = 7; // of a 32-bit float

/** Buttons that save a chart. `told()` gives its name, its picture, its legend ([style, label] …) and its table. */
export function downloads(told) {
  const asPicture = () => {
    const { name, picture, legend } = told();
    save(name, "svg", "image/svg+xml", standalone(picture, name, legend));
  };
  const picture = button("SVG", asPicture, "Save this chart as a picture");
  return html("span", { class: "downloads" }, picture, csvButton(told));
}

/** A button that saves the table of what `told()` gives: rows of texts and numbers, the first one of headings. */
export function csvButton(told) {
  const asTable = () => {
    const { name, table } = told();
    save(name, "csv", "text/csv", table.map((row) => `${row.map(cell).join(",")}\r\n`).join(""));
  };
  return button("CSV", asTable, "Save these numbers as a table");
}

const button = (text, press, title) => html("button", { type: "button", class: "save", text, title, onclick: press });

/** A text is put in quotation marks where it must be; what was not measured is empty. */
function cell(value) {
  if (typeof value === "number") return Number.isFinite(value) ? String(Number(value.toPrecision(DIGITS))) : "";
  const text = String(value ?? "");
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function save(name, ending, type, text) {
  const href = URL.createObjectURL(new Blob([text], { type: `${type};charset=utf-8` }));
  html("a", { href, download: `${fileName(name)}.${ending}` }).click();
  setTimeout(() => URL.revokeObjectURL(href), 1000); // not before the browser has begun to read
}

/** Letters, digits and a few signs that every file system takes. */
const fileName = (text) =>
  text
    .replace(/[^\p{L}\p{N}=.]+/gu, "-")
    .replace(/^[-.]+|[-.]+$/g, "")
    .slice(0, 100) || "chart";
