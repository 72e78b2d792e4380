/** Lists to choose from, filled again only where they have changed: what is open stays open. */

import { page } from "./data.js";
import { html } from "./dom.js";
import { isMixed } from "./selection.js";

/** Fill a list with options [value, text]. */
export function fillSelect(select, options, value) {
  groupedOptions(select, [["", options]], value);
}

/** Fill a list with [heading, options]; the headings are shown where the page has several data sets. */
export function groupedOptions(select, groups, value) {
  const wanted = JSON.stringify(groups);
  const optionsOf = (options) => options.map(([key, text]) => html("option", { value: key, text }));
  if (select.dataset.options !== wanted)
    select.replaceChildren(
      ...groups.flatMap(([label, options]) =>
        isMixed() && label ? [html("optgroup", { label }, ...optionsOf(options))] : optionsOf(options),
      ),
    );
  select.dataset.options = wanted;
  select.value = value;
}

/** Things by data set, in the page's order; `groupOf` gives the group of a thing. */
export const byData = (things, groupOf) =>
  page.datasets
    .map((data) => [data, things.filter((thing) => groupOf(thing).data === data)])
    .filter(([, own]) => own.length);
