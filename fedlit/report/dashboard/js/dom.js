/** Elements. Text that comes from runs is only ever set as text, never as markup. */

const SVG = "http://www.w3.org/2000/svg";

/** The element of the page with this id. */
export const byId = (id) => document.getElementById(id);

/** A new HTML element; `onclick` and the like are listeners, `text` is its text. */
export const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

/** A new SVG element. */
export const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

/** Make these the children of an element; what is in its place stays there, so that it keeps its focus. */
export function keepChildren(parent, children) {
  const isThere = (child, at) => child === parent.children[at];
  if (parent.children.length !== children.length || !children.every(isThere)) parent.replaceChildren(...children);
}

/** A short piece of a group's line: what a legend shows of it. */
export function swatch(style) {
  const line = svg("line", { x1: 1, x2: 23, y1: 5, y2: 5, class: "line", "stroke-dasharray": style.dash });
  line.setAttribute("stroke", "currentColor");
  line.setAttribute("stroke-width", 3);
  return svg("svg", { class: `swatch ${style.tone}`, viewBox: "0 0 24 10", "aria-hidden": "true" }, line);
}

/** `1 run`, `9 runs`. */
export const counted = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
