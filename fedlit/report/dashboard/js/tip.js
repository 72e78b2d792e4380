/** The box that shows values beside the pointer. */

import { byId, html } from "./dom.js";

const GAP = 14;
const NARROW = 700; // pixels: there the box stands above or below the picture instead of on it
const COLUMNS = [null, "two", "three"];

/** Show a heading and rows [swatch, label, value, isNear] for a point of a picture (in its own pixels). */
export function showTip(picture, heading, rows, x, y) {
  const tip = byId("tip");
  const columns = innerWidth > NARROW ? COLUMNS[rows.length > 32 ? 2 : rows.length > 16 ? 1 : 0] : null;
  const list = html("ol", { class: columns }, ...rows.map(item));
  const more = html("em", { hidden: true });
  tip.replaceChildren(html("strong", { text: heading }), list, more);
  tip.hidden = false;
  const box = picture.getBoundingClientRect();
  shorten(
    tip,
    list,
    more,
    innerWidth > NARROW ? innerHeight - 8 : Math.max(box.top, innerHeight - box.bottom, 160) - 8,
  );
  if (innerWidth > NARROW) placeBeside(tip, box.left + x, box.top + y);
  else placeOutside(tip, box);
}

function item([mark, label, value, near]) {
  return html("li", { class: near ? "near" : null }, mark, html("span", { text: label }), html("b", { text: value }));
}

/** Leave out the last rows until the box is low enough, and say how many. */
function shorten(tip, list, more, most) {
  tip.style.left = tip.style.top = "0"; // measured where nothing squeezes it
  let left = 0;
  while (tip.offsetHeight > most && list.children.length > 3) {
    list.lastElementChild.remove();
    more.hidden = false;
    more.textContent = `… and ${++left} more: choose fewer runs`;
  }
}

function placeBeside(tip, x, y) {
  const beside = x + GAP + tip.offsetWidth < innerWidth ? x + GAP : x - GAP - tip.offsetWidth;
  moveTo(tip, beside, y + GAP);
}

function placeOutside(tip, box) {
  const below = innerHeight - box.bottom > tip.offsetHeight || innerHeight - box.bottom > box.top;
  moveTo(tip, 4, below ? box.bottom : box.top - tip.offsetHeight);
}

function moveTo(tip, x, y) {
  tip.style.left = `${Math.max(4, Math.min(x, innerWidth - tip.offsetWidth - 4))}px`;
  tip.style.top = `${Math.max(4, Math.min(y, innerHeight - tip.offsetHeight - 4))}px`;
}

/** Hide the box. */
export function hideTip() {
  byId("tip").hidden = true;
}

addEventListener("scroll", hideTip, { passive: true });
