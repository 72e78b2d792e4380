/** A chart as an SVG file of its own: on white, with its title and legend, and without the page's style sheet. */

import { svg } from "./dom.js";

const PROPERTIES = [
  ...["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity"],
  ...["font-family", "font-size", "font-weight"],
];
const [ROW, SWATCH, LETTER, GAP, EDGE] = [20, 30, 7, 18, 12]; // pixels: the height of a line of text, then widths

/** The text of the file. `legend` holds [style, label] of what is drawn. */
export function standalone(picture, title, legend) {
  const { width, height } = picture.getBoundingClientRect();
  const words = wrapped(title, (width - 2 * EDGE) / (LETTER + 1.5)); // its letters are larger
  const rows = rowsOf(legend, width - 2 * EDGE);
  const above = words.length * ROW + 10;
  const all = above + height + rows.length * ROW + 10;
  const whole = svg("svg", { class: "chart export", width, height: all });
  const copy = svg("svg", { x: 0, y: above, width, height });
  copy.append(...[...picture.children].map((child) => child.cloneNode(true)));
  whole.append(
    svg("rect", { class: "paper", x: 0, y: 0, width: "100%", height: "100%" }),
    ...words.map((text, at) => svg("text", { class: "title", x: EDGE, y: 20 + at * ROW, text })),
    copy,
    ...rows.flatMap((row, at) => row.map((entry) => entryOf(entry, above + height + at * ROW + 10))),
  );
  document.body.append(whole); // styles are only known of what is in the page
  whole.querySelectorAll("*").forEach(keepStyle);
  whole.remove();
  whole.removeAttribute("class");
  whole.setAttribute("viewBox", `0 0 ${width} ${all}`);
  return new XMLSerializer().serializeToString(whole);
}

/** A text in lines of at most so many letters, parted between words. */
function wrapped(text, most) {
  const lines = [];
  for (const word of text.split(" ")) {
    const longer = lines.length ? `${lines.at(-1)} ${word}` : word;
    if (lines.length && longer.length <= most) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

/** Entries with their place from the left, a new row where the next one does not fit. */
function rowsOf(legend, width) {
  const rows = [];
  let left = Infinity;
  for (const [style, label] of legend) {
    const need = SWATCH + LETTER * label.length + GAP;
    if (left + need > width) {
      rows.push([]);
      left = 0;
    }
    rows.at(-1).push({ style, label, left: EDGE + left });
    left += need;
  }
  return rows;
}

function entryOf({ style, label, left }, y) {
  const mark = { class: `line ${style.tone}`, "stroke-dasharray": style.dash, x1: left, x2: left + SWATCH - 8 };
  return svg("g", {}, svg("line", { ...mark, y1: y, y2: y }), svg("text", { x: left + SWATCH, y: y + 4, text: label }));
}

/** Write what the style sheet says into the element itself. */
function keepStyle(element) {
  if (!["svg", "g"].includes(element.localName)) {
    const style = getComputedStyle(element);
    for (const name of PROPERTIES) {
      const value = style.getPropertyValue(name);
      if (value) element.setAttribute(name, value);
    }
  }
  element.removeAttribute("class");
}
