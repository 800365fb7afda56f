// Who waits for chips and why, attempts to obtain them, quotas, and which jobs use which nodes.

import { read } from "./api.js";
import { ago, h, jobLink, link, number, section, table } from "./dom.js";

export function open(root) {
  let drawn = null;
  return {
    async refresh() {
      const answer = await read("capacity");
      document.title = "Capacity · posttrain";
      if (answer === drawn) return;
      drawn = answer;
      root.replaceChildren(h("h1", {}, "Capacity"), ...answer.notes.map((note) => h("p", { class: "note" }, note)),
        section("Jobs that wait", waiting(answer)),
        section("Attempts to obtain chips", attempts(answer.attempts)),
        ...(answer.cluster ? [section("Quota", plain("Quota", answer.quota, "Kueue is not installed, or may not be read.")),
          section("Node pools", plain("Node pools", answer.pools, "No node has chips.")),
          section("Chips by node", nodes(answer.nodes))] : []));
    },
  };
}

function waiting({ queue, cluster }) {
  if (!queue.length) return h("p", {}, "No job waits.");
  return table(["Job", "State", "Queue", "Accelerator", "Chips", "Age", "Waits for"], queue.map((row) => [
    link(jobLink(cluster ? `${row.namespace}/${row.name}` : row.name), row.name), row.phase, row.queue, row.accelerator,
    String(row.chips || ""), row.age, row["waits for"]]), "Jobs that wait");
}

function attempts(rows) {
  if (!rows.length) return h("p", {}, "No job that runs or waits has tried to obtain chips.");
  return table(["Job", "Option", "Zone", "Began", "Outcome"], rows.map((row) => [
    link(jobLink(row.id), row.id), row.option, row.zone ?? "", `${ago(row.started)} ago`,
    row.outcome || (row.ready ? "chips are ready" : "in progress")]), "Attempts to obtain chips");
}

// Rows as the server names their columns.
function plain(caption, rows, nothing) {
  if (!rows?.length) return h("p", {}, nothing);
  const names = Object.keys(rows[0]);
  return table(names.map((name) => name[0].toUpperCase() + name.slice(1)), rows.map((row) => names.map((name) => number(row[name]))), caption);
}

function nodes(rows) {
  if (!rows?.length) return h("p", {}, "No node has chips, or nodes may not be read.");
  return table(["Pool", "Node", "Ready", "Chips in use", "By"], rows.map((row) => [row.pool, row.node, row.ready,
    h("span", { class: "chips" }, h("meter", { min: 0, max: row.chips, value: row.used, "aria-label": `Chips in use on ${row.node}` }), ` ${row.used} of ${row.chips}`),
    row.by]), "Chips by node");
}
