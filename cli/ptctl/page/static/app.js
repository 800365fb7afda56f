// Which view an address shows, links that stay within the page, and the rhythm in which views read anew.

import { go } from "./address.js";
import { h } from "./dom.js";
import * as capacity from "./capacity.js";
import * as diff from "./diff.js";
import * as job from "./job.js";
import * as jobs from "./jobs.js";

const VIEWS = { "/": jobs, "/job": job, "/capacity": capacity, "/diff": diff };
const EVERY_MS = 5000;
let shown = { refresh: async () => {}, stop: () => {} };
let turn = 0;

async function show({ focus = false } = {}) {
  const mine = ++turn;
  shown.stop?.();
  const root = document.getElementById("view");
  const view = VIEWS[location.pathname] ?? jobs;
  for (const each of document.querySelectorAll("nav a")) {
    if (each.pathname === location.pathname) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  const place = h("div", {});
  root.replaceChildren(place);
  shown = view.open(place);
  if (focus) root.focus({ preventScroll: true });
  scrollTo(0, 0);
  await refresh(mine);
}

async function refresh(mine = turn) {
  try {
    await shown.refresh();
    if (mine === turn) report(null);
  } catch (error) {
    if (mine === turn && error.name !== "AbortError") report(error);
  }
}

function report(error) {
  const line = document.getElementById("problem");
  line.hidden = error === null;
  const text = error === null ? "" : `${error.message}${error.hint ? ` (hint: ${error.hint})` : ""}`;
  if (line.textContent !== text) line.textContent = text;
}

document.addEventListener("click", (event) => {
  const anchor = event.target.closest?.("a[href]");
  const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
  if (!anchor || !plain || anchor.origin !== location.origin || anchor.target || anchor.hash) return;
  event.preventDefault();
  go(anchor.href);
});
addEventListener("navigate", () => show({ focus: true }));
addEventListener("popstate", () => show());
addEventListener("refresh", () => refresh());
setInterval(() => document.visibilityState === "visible" && refresh(), EVERY_MS);
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && refresh());
show();
