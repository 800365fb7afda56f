// What the model wrote at a step: prompts, completions, rewards and their parts, advantages, turns with tools.

import { keep, state } from "./address.js";
import { read } from "./api.js";
import { facts, h, number } from "./dom.js";

const ORDERS = { file: "as sampled", best: "best reward first", worst: "worst reward first", longest: "longest first" };
const AT_ONCE = 32;

export function open(root, id) {
  let answer = null;
  let drawn = null;
  const step = h("input", { id: "step", type: "number", min: 0, onchange: () => { keep({ step: step.value, page: null }); load(); } });
  const move = (label, to) => h("button", { type: "button", "data-to": to, onclick: () => { keep({ step: answer[to], page: null }); load(); } }, label);
  const buttons = [move("First", "first"), move("Previous", "previous"), move("Next", "next"), move("Newest", "last")];
  const text = h("input", { id: "words", type: "search", value: state().get("words") ?? "", oninput: () => { keep({ words: text.value, page: null }); draw(); } });
  const order = h("select", { id: "order", onchange: () => { keep({ order: order.value === "file" ? null : order.value, page: null }); draw(); } },
    Object.entries(ORDERS).map(([value, label]) => h("option", { value, selected: value === (state().get("order") ?? "file") }, label)));
  const count = h("p", { role: "status", class: "count" });
  const list = h("div", { class: "samples" });
  root.append(
    h("form", { class: "filters", onsubmit: (event) => event.preventDefault() },
      h("label", { for: "step" }, "Step", step), h("span", { class: "buttons" }, buttons),
      h("label", { for: "words" }, "Text", text), h("label", { for: "order" }, "Order", order)),
    count, list);

  async function load() {
    answer = await read("samples", { id, step: state().get("step") });
    draw();
  }

  function draw() {
    if (answer.step === null) {
      count.textContent = "No samples yet: only algorithms that sample (GRPO, PPO, on-policy distillation) write them.";
      return;
    }
    if (document.activeElement !== step) step.value = answer.step;
    for (const button of buttons) button.disabled = answer[button.dataset.to] === null || answer[button.dataset.to] === answer.step;
    const rows = chosen();
    const shown = AT_ONCE * Math.max(1, Number(state().get("page")) || 1);
    count.textContent = `Step ${number(answer.step)} (${number(answer.index + 1)} of ${number(answer.count)} with samples): ${rows.length} of ${answer.rows.length} samples`;
    list.replaceChildren(...rows.slice(0, shown).map(card), ...(rows.length > shown ? [more(shown / AT_ONCE + 1)] : []));
    drawn = answer;
  }

  const more = (page) => h("button", { type: "button", onclick: () => { keep({ page }); draw(); } }, "More samples");

  function chosen() {
    const words = (state().get("words") ?? "").toLowerCase();
    const rows = answer.rows.filter((row) => !words || JSON.stringify(row).toLowerCase().includes(words));
    const reward = (row) => row.reward ?? -Infinity;
    const keys = { best: (row) => -reward(row), worst: reward, longest: (row) => -(row.tokens ?? 0) };
    const key = keys[state().get("order")];
    return key ? rows.toSorted((a, b) => key(a) - key(b)) : rows;
  }

  return {
    async refresh() {
      if (answer !== null && state().get("step")) return; // a step's samples do not change
      const next = await read("samples", { id, step: state().get("step") });
      if (next === drawn) return;
      answer = next;
      draw();
    },
  };
}

function card(row) {
  const parts = Object.entries(row.rewards ?? {});
  const ended = row.ended === false ? " (cut)" : "";
  return h("article", {},
    facts([["Reward", h("strong", {}, row.reward === null ? "none" : number(row.reward))],
      ...(parts.length > 1 ? parts.map(([name, value]) => [name, value === null ? "none" : number(value)]) : []),
      ["Advantage", advantage(row.advantage)], ["Tokens", row.tokens === undefined ? "" : `${number(row.tokens)}${ended}`],
      ["Tool calls", row.tool_calls ? `${row.tool_calls}, ${row.tool_failures ?? 0} failed` : ""]]),
    h("h2", {}, "Prompt"), h("pre", { class: "prompt" }, row.prompt ?? ""),
    h("h2", {}, row.turns ? "Turns" : "Completion"),
    ...(Array.isArray(row.turns) ? row.turns.map(turn) : [h("pre", { class: "model" }, row.completion ?? "")]),
    row.error ? h("p", { class: "error" }, `No reward: ${row.error}`) : "");
}

function advantage(value) {
  if (value === undefined || value === null) return "";
  return h("span", { class: value > 0 ? "up" : value < 0 ? "down" : "" }, `${value > 0 ? "+" : ""}${number(value)}`);
}

function turn(each) {
  const calls = each.tool_calls ? `\n${JSON.stringify(each.tool_calls, null, 1)}` : "";
  const content = typeof each.content === "string" ? each.content : JSON.stringify(each.content ?? "");
  return h("div", { class: `turn ${each.role === "assistant" ? "model" : "other"}` }, h("span", { class: "quiet" }, each.role ?? ""), h("pre", {}, content + calls));
}
