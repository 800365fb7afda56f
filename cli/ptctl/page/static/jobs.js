// The list: filters in the address, fifty rows at a time, jobs chosen to be compared.

import { keep, state } from "./address.js";
import { read, remembered } from "./api.js";
import { ago, h, jobLink, link, number, phase } from "./dom.js";

const ROWS = 50;
const CHIP_HOURS_DIGITS = 1;
const CHOICES = [["state", "State", "phase"], ["owner", "Owner", "owner"], ["accelerator", "Accelerator", "accelerator"]];
const COLUMNS = [
  ["name", "Job"], ["phase", "State"], ["algorithm", "Algorithm"], ["accelerator", "Accelerator"], ["owner", "Owner"],
  ["step", "Step"], ["loss", "Loss"], ["reward", "Reward"], ["restarts", "Restarts"], ["created", "Age"],
];

// What the jobs have used: chip-hours, and money in each currency, where the operator knows prices ("12.30 USD").
function spent(rows) {
  const hours = rows.reduce((sum, row) => sum + (parseFloat(row.chipHours) || 0), 0);
  const amounts = new Map();
  for (const { amount } of rows) {
    const [, value, currency] = /^([\d.]+) (\S+)$/.exec(amount) ?? [];
    if (currency) amounts.set(currency, (amounts.get(currency) ?? 0) + parseFloat(value));
  }
  const money = [...amounts].map(([currency, sum]) => `${sum.toLocaleString("en", { maximumFractionDigits: 2 })} ${currency}`);
  return [...(hours ? [`${hours.toLocaleString("en", { maximumFractionDigits: CHIP_HOURS_DIGITS })} chip-hours`] : []), ...money];
}

export function open(root) {
  let items = null;
  let drawn = "";
  const count = h("p", { role: "status", class: "count" });
  const chosenLine = h("p", { class: "chosen", hidden: true });
  const chosen = new Set(state().getAll("chosen"));
  const text = h("input", { type: "search", id: "text", value: state().get("text") ?? "", oninput: () => filter({ text: text.value }) });
  const selects = CHOICES.map(([name, label, field]) => {
    const select = h("select", { id: name, onchange: () => filter({ [name]: select.value }) });
    return { name, label, field, select };
  });
  const body = h("tbody");
  const head = h("tr");
  const pages = h("nav", { class: "pages", "aria-label": "Pages of jobs" });
  root.append(
    h("h1", {}, "Jobs"),
    h("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
      h("label", { for: "text" }, "Text", text),
      selects.map(({ name, label, select }) => h("label", { for: name }, label, select)),
      h("button", { type: "button", onclick: clear }, "Clear")),
    count, chosenLine,
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Jobs" },
      h("table", { class: "jobs" }, h("thead", {}, head), body)),
    pages);

  function filter(changes) {
    keep({ ...changes, page: null });
    draw();
  }

  function clear() {
    text.value = "";
    keep({ text: null, state: null, owner: null, accelerator: null, page: null });
    fill();
    draw();
  }

  // The choices of a filter are the values that exist, and the one that is chosen.
  function fill() {
    for (const { name, field, select } of selects) {
      const current = state().get(name) ?? "";
      const values = [...new Set([...items.map((item) => item[field]), current])].filter(Boolean).sort();
      select.replaceChildren(h("option", { value: "" }, "all"), ...values.map((value) => h("option", { value, selected: value === current }, value)));
    }
  }

  function matching() {
    const words = (state().get("text") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = selects.map(({ name, field }) => [field, state().get(name)]).filter(([, value]) => value);
    return items.filter((item) =>
      wanted.every(([field, value]) => item[field] === value) && words.every((word) => item.search.includes(word)));
  }

  function sorted(rows) {
    const [, down, field] = /^(-?)(.*)$/.exec(state().get("sort") ?? "-created");
    const sign = down ? -1 : 1;
    const key = (row) => (["loss", "reward"].includes(field) ? parseFloat(row[field]) : row[field]);
    const missing = (value) => value === "" || value === undefined || Number.isNaN(value);
    return rows.toSorted((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (missing(x) || missing(y)) return Number(missing(x)) - Number(missing(y));
      return x < y ? -sign : x > y ? sign : 0;
    });
  }

  function draw() {
    const rows = sorted(matching());
    const last = Math.max(1, Math.ceil(rows.length / ROWS));
    const page = Math.min(last, Math.max(1, Number(state().get("page")) || 1));
    count.textContent = [`${number(rows.length)} of ${number(items.length)} jobs`, ...spent(rows)].join(" · ");
    drawHead();
    body.replaceChildren(...rows.slice((page - 1) * ROWS, page * ROWS).map(row));
    const to = (label, target) => h("button", { type: "button", disabled: target < 1 || target > last, onclick: () => { keep({ page: target }); draw(); } }, label);
    pages.replaceChildren(...(last > 1 ? [to("Previous", page - 1), `Page ${page} of ${last}`, to("Next", page + 1)] : []));
    drawChosen();
  }

  function drawHead() {
    const sort = state().get("sort") ?? "-created";
    head.replaceChildren(h("th", { scope: "col" }, h("span", { class: "quiet" }, "Compare")), ...COLUMNS.map(([field, title]) => {
      const direction = sort === field ? "ascending" : sort === `-${field}` ? "descending" : null;
      const flip = () => { keep({ sort: sort === field ? `-${field}` : field, page: null }); draw(); head.querySelector(`[data-field=${field}]`).focus(); };
      return h("th", { scope: "col", "aria-sort": direction },
        h("button", { type: "button", "data-field": field, onclick: flip }, title, direction ? (direction === "ascending" ? " ↑" : " ↓") : ""));
    }));
  }

  function row(item) {
    const choose = (event) => {
      if (event.target.checked) chosen.add(item.id); else chosen.delete(item.id);
      keep({ chosen: [...chosen] });
      drawChosen();
    };
    const box = h("input", { type: "checkbox", checked: chosen.has(item.id), "aria-label": `Compare ${item.id}`, onchange: choose });
    const cell = (name, ...content) => h("td", { "data-label": name }, ...content);
    return h("tr", {},
      h("td", { class: "box" }, box),
      h("th", { scope: "row" }, link(jobLink(item.id), item.name), item.namespace ? h("span", { class: "quiet" }, ` ${item.namespace}`) : ""),
      cell("State", phase(item.phase), item.failure && item.phase !== "Succeeded" ? h("span", { class: "quiet" }, ` ${item.failure}`) : ""),
      cell("Algorithm", item.algorithm), cell("Accelerator", item.accelerator), cell("Owner", item.owner),
      cell("Step", item.total ? `${number(item.step)}/${number(item.total)}` : ""),
      cell("Loss", item.loss), cell("Reward", item.reward),
      cell("Restarts", item.restarts ? String(item.restarts) : ""), cell("Age", ago(item.created)));
  }

  function drawChosen() {
    chosenLine.hidden = chosen.size === 0;
    const [first, ...others] = [...chosen];
    if (first === undefined) return;
    const curves = `${jobLink(first, "curves")}${others.map((id) => `&with=${encodeURIComponent(id)}`).join("")}`;
    const differences = `/diff?a=${encodeURIComponent(first)}&b=${encodeURIComponent(others[0] ?? "")}`;
    chosenLine.replaceChildren(`${chosen.size} chosen: `, link(curves, "curves"), ...(others.length === 1 ? [" ", link(differences, "differences")] : []));
  }

  function take(answer) {
    if (answer.items === items) return;
    items = answer.items;
    for (const item of items) {
      item.search ??= [item.id, item.algorithm, item.model, item.accelerator, item.owner, item.queue, item.phase, item.failure].join(" ").toLowerCase();
    }
    const signature = JSON.stringify(items);
    if (signature === drawn) return;
    drawn = signature;
    if (!document.activeElement?.closest?.("select")) fill();
    const focused = document.activeElement?.getAttribute?.("aria-label");
    draw();
    if (focused) body.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
  }

  return {
    async refresh() {
      document.title = "Jobs · posttrain";
      if (items === null && remembered("jobs")) take(remembered("jobs"));
      take(await read("jobs"));
    },
  };
}
