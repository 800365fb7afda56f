// What differs between two jobs: spec and results.

import { keep, state } from "./address.js";
import { read } from "./api.js";
import { h, jobLink, link, section, table } from "./dom.js";

export function open(root) {
  let drawn = null;
  const selects = ["a", "b"].map((name) => h("select", { id: name, onchange: (event) => { keep({ [name]: event.target.value }); view.refresh(); } }));
  const result = h("div");
  root.append(h("h1", {}, "Differences"),
    h("form", { class: "filters", onsubmit: (event) => event.preventDefault() },
      h("label", { for: "a" }, "First job", selects[0]), h("label", { for: "b" }, "Second job", selects[1])), result);
  const view = {
    async refresh() {
      document.title = "Differences · posttrain";
      const { items } = await read("jobs");
      selects.forEach((select, i) => fill(select, items, state().get("ab"[i]) ?? ""));
      const [a, b] = [state().get("a"), state().get("b")];
      if (!a || !b) return;
      const answer = await read("diff", { a, b });
      if (answer === drawn) return;
      drawn = answer;
      result.replaceChildren(
        h("p", {}, link(jobLink(a), a), " and ", link(jobLink(b), b), " · ", link(`${jobLink(a, "curves")}&with=${encodeURIComponent(b)}`, "their curves")),
        section("Spec", rows(answer, answer.spec, "Spec")), section("Results", rows(answer, answer.results, "Results")));
    },
  };
  return view;
}

function fill(select, items, current) {
  const ids = items.map((item) => item.id);
  if (current && !ids.includes(current)) ids.unshift(current);
  if (select.options.length === ids.length + 1 || document.activeElement === select) return;
  select.replaceChildren(h("option", { value: "" }, "choose"), ...ids.map((id) => h("option", { value: id, selected: id === current }, id)));
}

function rows({ a, b }, fields, caption) {
  if (!fields.length) return h("p", {}, "No differences.");
  const text = (value) => h("code", {}, value === null ? "–" : typeof value === "string" ? value : JSON.stringify(value));
  return table(["Field", a, b], fields.map((row) => [h("code", {}, row.field), text(row.a), text(row.b)]), caption);
}
