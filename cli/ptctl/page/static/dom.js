// Elements from values. Text is always set as text: nothing that a model or a user wrote becomes markup.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof value === "boolean") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// A link within the page: href is where it leads, and app.js follows it without loading anything anew.
export const link = (href, ...children) => h("a", { href }, ...children);

export const jobLink = (id, tab = "") => `/job?id=${encodeURIComponent(id)}${tab ? `&tab=${tab}` : ""}`;

const MOST_ROWS = 100;

// caption: what the table is, unlike any other of the page.
export function table(headers, rows, caption) {
  const cells = (row) => row.map((cell, i) => h("td", { "data-label": headers[i] }, cell ?? ""));
  const rest = rows.length > MOST_ROWS ? h("p", {}, `and ${number(rows.length - MOST_ROWS)} more`) : null;
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {},
      h("thead", {}, h("tr", {}, headers.map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, rows.slice(0, MOST_ROWS).map((row) => h("tr", {}, cells(row))))),
    rest);
}

// Terms with their values; those without a value are left out.
export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== 0);
  return h("dl", { class: "facts" }, shown.map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value))));
}

export function section(title, ...content) {
  return h("section", {}, h("h2", {}, title), ...content);
}

export const phase = (text) => h("span", { class: `phase ${text.toLowerCase()}` }, text);

export function number(value) {
  if (value === null || value === undefined || value === "") return "";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-3 ? value.toExponential(3) : String(Number(value.toPrecision(4)));
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const s = Math.max(0, Math.round(seconds));
  if (s < 120) return `${s}s`;
  if (s < 7200) return `${Math.floor(s / 60)}m${s % 60 ? `${s % 60}s` : ""}`;
  if (s < 172800) return `${Math.floor(s / 3600)}h${Math.floor((s % 3600) / 60)}m`;
  return `${Math.floor(s / 86400)}d${Math.floor((s % 86400) / 3600)}h`;
}

// A time as the API server writes it, on one line.
export const when = (time) => h("time", { datetime: time }, time.replace("T", " ").replace(/\.\d+|Z/g, ""));

export function ago(time) {
  const moment = Date.parse(time);
  return Number.isNaN(moment) ? "" : duration((Date.now() - moment) / 1000);
}
