/** Numbers as people read them, in the units of the catalogue. */

const UNITS = { share: "%", points: "points", "share²": "share²", MB: "MB", s: "s" };

/** The unit as it stands behind a number or beside an axis. */
export const unitText = (unit) => UNITS[unit] ?? "";

/** A number without its unit: 83.42 for a share of 0.8342, four digits otherwise. */
export function plain(unit, value) {
  if (value == null || !Number.isFinite(value)) return "–";
  if (unit === "share" || unit === "points") return (100 * value).toFixed(2);
  if (unit === "share²") return value.toFixed(4);
  return fourDigits(value);
}

function fourDigits(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e6)) return value.toExponential(3);
  if (size >= 1e4) return Math.round(value).toLocaleString("en");
  return Number.isInteger(value) ? String(value) : value.toPrecision(4);
}

/** A number with its unit. */
export function shown(unit, value) {
  const text = plain(unit, value);
  return text === "–" || !UNITS[unit] || unit === "share²" ? text : `${text} ${UNITS[unit]}`;
}

/** Mean ± standard deviation, without a unit; the deviation has as many decimals as the mean. */
export function plainSpread(unit, mean, std) {
  const text = plain(unit, mean);
  if (std == null) return text;
  const spread = unit === "share" || unit === "points" ? 100 * std : std;
  const fixed = spread.toFixed(text.includes("e") ? 0 : (text.split(".")[1]?.length ?? 0));
  return `${text} ± ${Number(fixed) > 0 || spread === 0 ? fixed : spread.toPrecision(1)}`;
}

/** Mean ± standard deviation, with the unit. */
export function shownSpread(unit, mean, std) {
  return std == null
    ? shown(unit, mean)
    : `${plainSpread(unit, mean, std)} ${unit === "share²" ? "" : unitText(unit)}`.trim();
}

/** The label of a tick; `step` is the distance to the next one. */
export function tickText(unit, value, step) {
  if (unit === "share" || unit === "points")
    return `${(100 * value).toFixed(decimals(100 * step))}${unit === "share" ? " %" : ""}`;
  return extremeText(value) ?? (Math.abs(value) >= 1e4 ? value.toLocaleString("en") : value.toFixed(decimals(step)));
}

/** The label of a tick on a logarithmic axis: at most two digits matter. */
export const logTickText = (value) => extremeText(value) ?? Number(value.toPrecision(2)).toLocaleString("en");

/** Very large and very small numbers as powers of ten. */
function extremeText(value) {
  const size = Math.abs(value);
  return size >= 1e5 || (size !== 0 && size < 1e-3) ? value.toExponential(1).replace(".0e", "e") : null;
}

const decimals = (step) => Math.max(0, Math.min(6, Math.ceil(-Math.log10(step) - 1e-9)));
