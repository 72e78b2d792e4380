/** What the reader has chosen. It lives in the address behind the #, so a reload or a copied link keeps it. */

const text = (fallback) => ({ fallback, read: (value) => value, write: (value) => value });
const number = (fallback) => ({
  fallback,
  read: (value) => (Number.isFinite(Number(value)) ? Number(value) : fallback),
  write: String,
});
const list = (fallback, between = ",") => ({
  fallback,
  read: (value) => value.split(between).filter(Boolean),
  write: (value) => value.join(between),
});

const FIELDS = {
  tab: text("curves"),
  filter: text(""),
  data: list([], "\n"), // none chosen: all; names of data sets may have commas
  algorithm: list([]),
  seed: list([]),
  off: list(null), // keys of runs that are not ticked; null: the best groups are
  metrics: list(null), // null: the usual ones
  mode: text("mean"),
  x: text("round"), // a key of an axis; `xAxis` reads it
  smooth: number(1),
  window: number(10), // evaluated rounds that a point of min and max user is the mean of
  log: list([]), // metrics on a logarithmic axis
  zoom: list(null), // first and last place on the x axis; `zoomed` reads it
  sort: text(""),
  down: text(""),
  run: text(""),
  round: number(-1), // -1: the last
  by: text("size"),
  rising: text(""),
  own: text("acc_personal"),
  a: text(""), // keys of the first runs of two groups: their users are compared
  b: text(""),
  acc: text("acc_personal"), // by this accuracy
  theme: text("system"),
};

export const state = {};
let listeners = [];
let pending = null;

/** Read the address; unknown names are ignored. */
export function readState() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const [name, field] of Object.entries(FIELDS)) {
    state[name] = given.has(name) ? field.read(given.get(name)) : field.fallback;
  }
}

/** Change what is chosen; everything that listens draws itself again. */
export function change(changes) {
  Object.assign(state, changes);
  clearTimeout(pending);
  pending = setTimeout(saveState, 80); // a slider moves faster than browsers let an address change
  listeners.forEach((listener) => listener());
}

/** Call `listener` after every change, also when the reader edits the address. */
export function onChange(listener) {
  listeners.push(listener);
}

/** First and last place of the zoom as numbers, or null. */
export function zoomed() {
  const [first, last] = state.zoom?.map(Number) ?? [];
  return first < last ? [first, last] : null;
}

/** Put or remove a value of a list. */
export const toggled = (values, value) =>
  values.includes(value) ? values.filter((other) => other !== value) : [...values, value];

function saveState() {
  const said = new URLSearchParams();
  for (const [name, field] of Object.entries(FIELDS)) {
    const value = state[name] == null ? null : field.write(state[name]);
    const usual = field.fallback == null ? null : field.write(field.fallback);
    if (value !== usual) said.set(name, value);
  }
  history.replaceState(null, "", `#${said}`);
}

addEventListener("pagehide", saveState);
addEventListener("hashchange", () => {
  readState();
  listeners.forEach((listener) => listener());
});
