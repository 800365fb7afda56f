// Metrics of one run or several, one chart each. The server sends as many points as a chart is wide; smoothing is done here.

import { keep, state } from "./address.js";
import { read } from "./api.js";
import { h, jobLink, link, number } from "./dom.js";

const DEFAULT_CHARTS = 4;
const HEIGHT = 220;
const WIDTH = 800;
const COLOURS = 6;
const BAND = 0.18;
const OUTLINE_MS = 500;

export function open(root, id) {
  const charts = new Map();
  const controls = h("form", { class: "filters", onsubmit: (event) => event.preventDefault() });
  const runs = h("ul", { class: "runs", "aria-label": "Runs" });
  const chooser = h("details", { class: "chooser" });
  const grid = h("div", { class: "charts" });
  let known = null;
  let step = {};
  const visible = new IntersectionObserver((entries) => entries.forEach(({ target, isIntersecting }) => {
    const chart = [...charts.values()].find(({ element }) => element === target);
    if (chart) chart.inView = isIntersecting;
    if (isIntersecting) chart?.load();
  }), { rootMargin: "200px" });
  const resized = new ResizeObserver(() => charts.forEach((chart) => chart.resize()));
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const redraw = () => charts.forEach((chart) => chart.draw());
  root.append(controls, runs, chooser, grid);
  resized.observe(grid);
  dark.addEventListener("change", redraw);
  drawControls();

  const ids = () => [...new Set([id, ...state().getAll("with")])].slice(0, 12);

  function drawControls() {
    const at = state();
    const smooth = h("input", { id: "smooth", type: "range", min: 0, max: 0.99, step: 0.01, value: at.get("smooth") ?? "0",
      oninput: () => { keep({ smooth: Number(smooth.value) || null }); shown.textContent = smooth.value; redraw(); } });
    const shown = h("output", { for: "smooth" }, smooth.value);
    const log = h("input", { id: "log", type: "checkbox", checked: at.get("log") === "1", onchange: () => { keep({ log: log.checked ? 1 : null }); redraw(); } });
    const by = h("select", { id: "by", onchange: () => { keep({ by: by.value === "time" ? "time" : null, from: null, to: null }); reload(); } },
      [["step", "Step"], ["time", "Time since the start"]].map(([value, label]) => h("option", { value, selected: value === (at.get("by") ?? "step") }, label)));
    const bound = (name, label) => h("label", { for: name }, label,
      h("input", { id: name, type: "number", step: "any", value: at.get(name) ?? "", onchange: (event) => { keep({ [name]: event.target.value }); reload(); } }));
    controls.replaceChildren(h("label", { for: "smooth" }, "Smoothing", h("span", {}, smooth, shown)), h("label", { for: "log" }, "Log axis", log),
      h("label", { for: "by" }, "Over", by), bound("from", "From"), bound("to", "To"),
      h("button", { type: "button", onclick: () => zoom(null, null) }, "Whole run"));
  }

  function zoom(from, to) {
    keep({ from, to });
    controls.querySelector("#from").value = from ?? "";
    controls.querySelector("#to").value = to ?? "";
    reload();
  }

  function reload() {
    charts.forEach((chart) => { chart.stale = true; if (chart.inView) chart.load(); });
  }

  function drawRuns(jobs) {
    const others = jobs.filter((each) => !ids().includes(each));
    const add = h("select", { id: "with", onchange: () => compare([...ids().slice(1), add.value]) },
      h("option", { value: "" }, "choose"), others.map((each) => h("option", { value: each }, each)));
    runs.replaceChildren(...ids().map((each, i) => h("li", {},
      h("span", { class: `swatch run${i % COLOURS}`, "aria-hidden": "true" }), link(jobLink(each, "curves"), each),
      i ? h("button", { type: "button", "aria-label": `Remove ${each}`, onclick: () => compare(ids().slice(1).filter((one) => one !== each)) }, "✕") : "")),
      h("li", {}, h("label", { for: "with" }, "Compare with ", add)));
  }

  function compare(others) {
    keep({ with: others });
    drawRuns(known.jobs);
    reload();
  }

  function drawChooser(names, chosen) {
    const box = (name) => {
      const input = h("input", { type: "checkbox", checked: chosen.includes(name), onchange: () => {
        const now = input.checked ? [...shownMetrics(), name] : shownMetrics().filter((each) => each !== name);
        keep({ metric: now.length ? now : "none" });
        drawCharts();
      } });
      return h("label", {}, input, name);
    };
    const wasOpen = chooser.open;
    chooser.replaceChildren(h("summary", {}, `Metrics (${names.length})`), h("div", { class: "names" }, names.map(box)));
    chooser.open = wasOpen;
  }

  function shownMetrics() {
    const chosen = state().getAll("metric");
    return chosen.length ? chosen.filter((name) => name !== "none") : known.usual.slice(0, DEFAULT_CHARTS);
  }

  function drawCharts() {
    const names = shownMetrics();
    for (const [name, chart] of charts) if (!names.includes(name)) { visible.unobserve(chart.element); chart.stop(); charts.delete(name); }
    for (const name of names) if (!charts.has(name)) { charts.set(name, makeChart(name)); }
    grid.replaceChildren(...names.map((name) => charts.get(name).element));
    names.forEach((name) => visible.observe(charts.get(name).element));
  }

  function makeChart(name) {
    const heading = h("h2", {}, name);
    const canvas = h("div", { class: "chart", role: "img", "aria-label": name });
    const reading = h("p", { class: "reading" });
    const element = h("figure", { tabindex: "0", "aria-label": name }, heading, canvas, reading);
    let plot = null;
    let answer = null;
    let request = null;
    const chart = { element, inView: false, stale: true };
    const unit = () => (state().get("by") === "time" ? "s" : "step");

    chart.load = async () => {
      if (!chart.stale) return;
      chart.stale = false;
      request?.abort();
      request = new AbortController();
      const at = state();
      const asked = { id: ids().join(","), metric: name, by: at.get("by"), from: at.get("from"), to: at.get("to"), width: Math.min(WIDTH, Math.round(canvas.clientWidth) || WIDTH) };
      try {
        const next = await read("curve", asked, request.signal);
        if (next !== answer || !plot) { answer = next; chart.draw(); }
      } catch (error) {
        if (error.name !== "AbortError") reading.textContent = error.message;
      }
    };

    chart.draw = () => {
      if (!answer) return;
      plot?.destroy();
      const weight = Number(state().get("smooth")) || 0;
      const { data, series, bands } = lines(answer.runs, weight);
      plot = new uPlot(options(series, bands), data, canvas);
      describe(null);
    };

    chart.resize = () => plot && plot.width !== canvas.clientWidth && plot.setSize({ width: canvas.clientWidth, height: HEIGHT });
    chart.stop = () => { request?.abort(); plot?.destroy(); plot = null; };

    function describe(index) {
      const texts = answer.runs.map((run, i) => {
        const values = plot.data[1 + 3 * i];
        const at = index ?? values.findLastIndex((value) => value !== null && value !== undefined);
        return values[at] === null || values[at] === undefined ? `${run.id}: no value here` : `${run.id}: ${number(values[at])} at ${unit()} ${number(plot.data[0][at])}`;
      });
      reading.textContent = texts.join(" · ");
      if (index === null) canvas.setAttribute("aria-label", `${name}. Newest: ${texts.join("; ")}`);
    }

    function options(series, bands) {
      const style = getComputedStyle(document.documentElement);
      const [ink, line] = [style.getPropertyValue("--ink"), style.getPropertyValue("--line")];
      const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
      const log = state().get("log") === "1" && plotIsPositive(answer.runs);
      return {
        width: canvas.clientWidth, height: HEIGHT, series, bands, legend: { show: false },
        scales: { x: { time: false }, y: { distr: log ? 3 : 1 } },
        axes: [{ ...axis, values: (_, values) => values.map((value) => (unit() === "s" ? seconds(value) : value.toLocaleString("en"))) },
          { ...axis, size: 64, values: (_, values) => values.map((value) => (value === null ? "" : number(value))) }],
        cursor: { sync: { key: "curves" }, drag: { x: true, y: false, setScale: false }, points: { show: false } },
        hooks: {
          setSelect: [(u) => u.select.width > 4 && zoom(round(u.posToVal(u.select.left, "x")), round(u.posToVal(u.select.left + u.select.width, "x")))],
          setCursor: [(u) => describe(u.cursor.idx ?? null)],
        },
      };
    }
    canvas.addEventListener("dblclick", () => zoom(null, null));
    element.addEventListener("keydown", (event) => steer(event, plot));
    return chart;
  }

  // The keyboard's zoom: arrows move, + and - narrow and widen, 0 shows the whole run.
  function steer(event, plot) {
    if (!plot || event.target !== event.currentTarget) return;
    const { min, max } = plot.scales.x;
    const span = max - min;
    const moves = { ArrowLeft: [-0.25, -0.25], ArrowRight: [0.25, 0.25], "+": [0.25, -0.25], "-": [-0.5, 0.5] };
    if (event.key === "0") zoom(null, null);
    else if (event.key in moves) zoom(round(Math.max(0, min + moves[event.key][0] * span)), round(max + moves[event.key][1] * span));
    else return;
    event.preventDefault();
  }

  return {
    stop() {
      visible.disconnect();
      resized.disconnect();
      dark.removeEventListener("change", redraw);
      charts.forEach((chart) => chart.stop());
    },
    async refresh() {
      const [metrics, { items }] = await Promise.all([read("metrics", { id }), read("jobs")]);
      const jobs = items.map((item) => item.id);
      const first = known === null;
      const news = metrics !== known?.metrics;
      known = { ...metrics, metrics, jobs };
      if (first || jobs.length !== step.jobs) drawRuns(jobs);
      if (first || metrics.names.length !== step.names) { drawChooser(metrics.names, shownMetrics()); drawCharts(); }
      step = { jobs: jobs.length, names: metrics.names.length };
      if (!metrics.names.length) grid.replaceChildren(h("p", {}, "No metrics yet."));
      else if (news && !first) reload();
      if (!metrics.whole) setTimeout(() => dispatchEvent(new Event("refresh")), OUTLINE_MS);
    },
  };
}

// Columns for uPlot on one x axis: for each run its line, lowest and highest, and a band between these two.
function lines(runs, weight) {
  const tables = runs.map((run) => {
    const smooth = smoothed(run.mean, weight);
    return [run.x, smooth, run.low.length ? run.low : run.mean, run.high.length ? run.high : run.mean];
  });
  const data = tables.length === 1 ? tables[0] : uPlot.join(tables);
  const style = getComputedStyle(document.documentElement);
  const series = [{}];
  const bands = [];
  runs.forEach((run, i) => {
    const colour = style.getPropertyValue(`--run${i % COLOURS}`).trim();
    const wide = run.per_point > 1 || weight > 0;
    const dash = i >= COLOURS ? [6, 4] : undefined;
    series.push({ label: run.id, stroke: colour, width: 2, dash, spanGaps: true, points: { show: run.x.length === 1 } });
    for (const end of ["lowest", "highest"]) {
      series.push({ label: `${run.id} ${end}`, stroke: faint(colour), width: wide ? 1 : 0, spanGaps: true, points: { show: false } });
    }
    if (run.per_point > 1) bands.push({ series: [3 * i + 3, 3 * i + 2], fill: faint(colour) });
  });
  return { data, series, bands };
}

// An exponential average over the points that are drawn, so that it shows at any zoom; the first are not drawn towards 0.
function smoothed(values, weight) {
  if (!weight) return values;
  let [sum, norm] = [0, 0];
  return values.map((value) => {
    sum = sum * weight + value * (1 - weight);
    norm = norm * weight + (1 - weight);
    return sum / norm;
  });
}

const faint = (colour) => colour + Math.round(255 * BAND).toString(16).padStart(2, "0");
const plotIsPositive = (runs) => runs.every((run) => (run.low.length ? run.low : run.mean).every((value) => value > 0));
const round = (value) => Number(value.toPrecision(6));

function seconds(value) {
  if (value >= 7200) return `${Number((value / 3600).toPrecision(3))}h`;
  return value >= 120 ? `${Number((value / 60).toPrecision(3))}m` : `${Number(value.toPrecision(3))}s`;
}
