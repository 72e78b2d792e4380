/** How a line chart answers: hovering shows values, dragging zooms, a double click shows all; keys do the same. */

import { svg } from "./dom.js";
import { change, zoomed } from "./state.js";

const LEAST_DRAG = 6; // pixels: less is a click

/** Make a chart answer to pointer and keys. */
export function listen(chart) {
  const { picture } = chart;
  let start = null;
  picture.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !chart.frame) return;
    start = pixelOf(chart, event);
    picture.setPointerCapture(event.pointerId);
  });
  picture.addEventListener("pointermove", (event) => {
    if (!chart.frame) return;
    const pixel = pixelOf(chart, event);
    if (start != null && Math.abs(pixel - start) >= LEAST_DRAG) drawDrag(chart, start, pixel);
    else chart.point(chart.placeAt(pixel), event.offsetY);
  });
  picture.addEventListener("pointerup", (event) => {
    const end = pixelOf(chart, event);
    if (start != null && Math.abs(end - start) >= LEAST_DRAG)
      zoomTo(chart, chart.placeAt(Math.min(start, end)), chart.placeAt(Math.max(start, end)));
    start = null;
  });
  picture.addEventListener("pointercancel", () => {
    start = null;
    chart.unpoint();
  });
  picture.addEventListener("pointerleave", () => start == null && chart.unpoint());
  picture.addEventListener("blur", () => chart.unpoint());
  picture.addEventListener("dblclick", () => change({ zoom: null }));
  picture.addEventListener("keydown", (event) => answerKey(chart, event));
}

/** Where the pointer is, within the frame. */
function pixelOf(chart, event) {
  const left = chart.picture.getBoundingClientRect().left;
  return Math.max(chart.frame.left, Math.min(chart.frame.right, event.clientX - left));
}

function drawDrag(chart, start, end) {
  chart.unpoint();
  const { top, bottom } = chart.frame;
  chart.overlay.replaceChildren(
    svg("rect", { class: "drag", x: Math.min(start, end), width: Math.abs(end - start), y: top, height: bottom - top }),
  );
}

function zoomTo(chart, first, last) {
  if (first < last) change({ zoom: [first, last] });
  else chart.unpoint();
}

function answerKey(chart, event) {
  const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
  const widths = { "+": 0.5, "=": 0.5, "-": 2 };
  if (event.key in steps) move(chart, steps[event.key]);
  else if (event.key in widths) zoomAround(chart, widths[event.key]);
  else if (event.key === "Escape") zoomed() ? change({ zoom: null }) : chart.unpoint();
  else return;
  event.preventDefault();
}

function move(chart, steps) {
  const inside = chart.inside(chart.span);
  const at = chart.place == null ? (steps > 0 ? -1 : inside.length) : inside.indexOf(chart.place);
  chart.point(inside[Math.max(0, Math.min(inside.length - 1, at + steps))]);
}

function zoomAround(chart, factor) {
  const [first, last] = chart.span;
  const middle = chart.place ?? (first + last) / 2;
  const reach = ((last - first) * factor) / 2;
  const { fitted } = chart.spec.axis;
  const low = Math.max(chart.places[0], fitted(middle - reach));
  const high = Math.min(chart.places.at(-1), fitted(middle + reach));
  const all = low === chart.places[0] && high === chart.places.at(-1);
  if (chart.inside([low, high]).length > 2) change({ zoom: all ? null : [low, high] });
}
