// The state of the page is its address, whole: a copied link shows the same.

export const state = () => new URLSearchParams(location.search);

// Change parts of the address: a value of null or "" leaves a part out, a list repeats it.
export function changed(changes, from = state()) {
  for (const [name, value] of Object.entries(changes)) {
    from.delete(name);
    for (const each of [value].flat()) if (each !== null && each !== undefined && each !== "") from.append(name, each);
  }
  return `${location.pathname}${from.size ? `?${from}` : ""}`;
}

// Replace the address without a new entry in the browser's history: typing in a filter is no step back.
export function keep(changes) {
  history.replaceState(null, "", changed(changes));
}

export function go(href) {
  history.pushState(null, "", href);
  dispatchEvent(new Event("navigate"));
}
