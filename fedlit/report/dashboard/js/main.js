/** The page: what is on top, which view is shown, and drawing it again when something changes. */

import { showCurves } from "./curves.js";
import { page, readPage } from "./data.js";
import { byId, counted, html, swatch } from "./dom.js";
import { showExtremes } from "./extremes.js";
import { showFinals } from "./finals.js";
import { lastOf } from "./gaps.js";
import { showPairs } from "./pairs.js";
import { chosenRuns, isMixed, offeredGroups, passes, ticked, withTicks } from "./selection.js";
import { buildSidebar, updateSidebar } from "./sidebar.js";
import { change, onChange, readState, state, zoomed } from "./state.js";
import { hideTip } from "./tip.js";
import { showUsers } from "./users.js";
import { isOn, offeredAxes, xAxis } from "./xaxis.js";

const VIEWS = { curves: showCurves, extremes: showExtremes, finals: showFinals, users: showUsers, pairs: showPairs };
const THEMES = ["system", "light", "dark"];
const NARROW = 860; // pixels, as in style.css
let waiting = false;

async function start() {
  readState();
  await readPage();
  showAbout();
  showRemarks();
  buildSidebar();
  listen();
  if (innerWidth <= NARROW) ["runs-panel", "metrics-panel"].forEach((id) => byId(id).removeAttribute("open"));
  onChange(() => {
    if (!waiting) requestAnimationFrame(draw);
    waiting = true;
  });
  draw();
  performance.mark("drawn");
}

function draw() {
  waiting = false;
  hideTip();
  document.documentElement.dataset.theme = state.theme;
  byId("theme").textContent = `Theme: ${state.theme}`;
  updateSidebar();
  updateTabs();
  updateToolbar();
  updateLegend();
  VIEWS[state.tab](byId("view"))?.catch(fail); // users are unpacked first
}

function showAbout() {
  const data = isMixed() ? counted(page.datasets.length, "data set") : page.datasets[0];
  byId("about").textContent = [counted(page.runs.length, "run"), counted(page.groups.length, "group"), data]
    .filter(Boolean)
    .join(" · ");
  byId("footer").textContent = `Written by fedlit ${page.version}, ${page.made}. Run the command again to refresh it.`;
}

function showRemarks() {
  const remarks = [...page.remarks, ...thinning()];
  byId("remarks").hidden = !remarks.length;
  byId("remarks").append(...remarks.map((text) => html("li", { text })));
}

/** A sentence where runs have more rounds than the file has room for. */
function thinning() {
  const thinned = page.runs.filter((run) => run.kept < run.rows);
  if (!thinned.length) return [];
  const [{ kept, rows }] = thinned;
  const kind = "evenly spaced ones are kept, the first and the last among them";
  return [
    `${counted(thinned.length, "run")} with more rounds than this file has room for: ${kind} (${kept} of ${rows}).`,
  ];
}

function listen() {
  byId("theme").addEventListener("click", () =>
    change({ theme: THEMES[(THEMES.indexOf(state.theme) + 1) % THEMES.length] }),
  );
  byId("smoothing").addEventListener("change", (event) => change({ smooth: Number(event.target.value) }));
  byId("window").addEventListener("change", (event) => change({ window: Number(event.target.value) }));
  byId("zoom-reset").addEventListener("click", () => change({ zoom: null }));
  document
    .querySelectorAll("[name=mode]")
    .forEach((radio) => radio.addEventListener("change", () => change({ mode: radio.value })));
  document
    .querySelectorAll("[name=axis]")
    .forEach((radio) => radio.addEventListener("change", () => change({ x: radio.value, zoom: null })));
  const tabs = [...document.querySelectorAll("[role=tab]")];
  tabs.forEach((tab) => tab.addEventListener("click", () => change({ tab: tab.id.slice(4) })));
  tabs.forEach((tab, at) => tab.addEventListener("keydown", (event) => walkTabs(tabs, at, event)));
}

function walkTabs(tabs, at, event) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  const next = tabs.at((at + step) % tabs.length);
  next.focus();
  next.click();
}

function updateTabs() {
  if (!(state.tab in VIEWS)) state.tab = "curves";
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const chosen = tab.id === `tab-${state.tab}`;
    tab.setAttribute("aria-selected", chosen);
    tab.tabIndex = chosen ? 0 : -1;
    if (chosen) byId("view").setAttribute("aria-labelledby", tab.id);
  }
}

function updateToolbar() {
  const curves = ["curves", "extremes"].includes(state.tab);
  byId("toolbar").hidden = byId("legend").hidden = ["users", "pairs"].includes(state.tab);
  byId("smoothing-label").hidden = state.tab !== "curves";
  byId("window-label").hidden = state.tab !== "extremes";
  byId("window").value = String(state.window);
  byId("smoothing").value = String(state.smooth);
  byId("zoom-reset").hidden = !curves || !zoomed();
  byId("zoom-reset").textContent = zoomed() && `${xAxis().range(zoomed())} · show all`;
  const axes = offeredAxes().map((axis) => axis.key);
  byId("axis").hidden = !curves || axes.length < 2;
  byId("hint").hidden = !curves;
  byId("hint").textContent = hint();
  document.querySelectorAll("[name=mode]").forEach((radio) => (radio.checked = radio.value === state.mode));
  for (const radio of document.querySelectorAll("[name=axis]")) {
    radio.checked = radio.value === xAxis().key;
    radio.parentElement.hidden = !axes.includes(radio.value);
  }
}

/** What to know of the curves as they are drawn. */
function hint() {
  const axis = xAxis();
  const missing = chosenRuns().filter((run) => !isOn(run, axis)).length;
  const told = missing ? ` Without ${axis.without}, and so not drawn: ${counted(missing, "run")}.` : "";
  return (state.tab === "extremes" ? hintOfWindow() : hintOfSmoothing()) + told;
}

const hintOfSmoothing = () =>
  state.smooth > 1 ? "Lines are moving averages; dots and values are as measured." : "Drag across a chart to zoom.";

const hintOfWindow = () =>
  state.window > 1
    ? `Each point is the mean of the last ${state.window} evaluated rounds.`
    : `Lines are as measured; the numbers are means of the last ${lastOf(state.window)} evaluated rounds.`;

/** Groups that are offered; a pressed one is drawn. The buttons are only replaced if they are others. */
function updateLegend() {
  const legend = byId("legend");
  const { offered, hidden } = offeredGroups();
  const wanted = [hidden, ...offered.map((group) => group.number)].join();
  if (legend.dataset.groups !== wanted)
    legend.replaceChildren(...page.datasets.flatMap((data) => legendOf(data, offered)), ...notOffered(offered, hidden));
  legend.dataset.groups = wanted;
  legend.querySelectorAll("button").forEach((button, at) => button.setAttribute("aria-pressed", isDrawn(offered[at])));
}

function notOffered(offered, hidden) {
  if (!hidden) return [];
  const best = `${counted(offered.length, "group")} of ${offered.length + hidden}, those with the best global values`;
  return [html("p", { class: "muted", text: `${best} at the end. Filter, tick others under Runs, or press All there.` })];
}

/** The groups of a data set, behind its name where there are several. */
function legendOf(data, groups) {
  const own = groups.filter((group) => group.data === data);
  if (!isMixed()) return own.map(legendButton);
  return own.length ? [html("div", {}, html("span", { class: "data", text: data }), ...own.map(legendButton))] : [];
}

const isDrawn = (group) => group.runs.some((run) => passes(run) && ticked(run));

function legendButton(group) {
  const press = () => change(withTicks(group.runs.filter(passes), !isDrawn(group)));
  return html("button", { type: "button", onclick: press }, swatch(group.style), html("span", { text: group.label }));
}

function fail(error) {
  byId("failure").hidden = false;
  byId("failure").textContent =
    `This page could not be drawn (${error.message}). It needs a browser of 2024 or newer. ` +
    "If yours is, write the page again with 'fedlit dashboard'.";
  throw error;
}

start().catch(fail);
