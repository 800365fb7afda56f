// One job: what it is and how it goes, its curves, its samples, its spec.

import { changed, state } from "./address.js";
import { read } from "./api.js";
import * as curves from "./curves.js";
import { ago, duration, facts, h, link, number, phase, section, table, when } from "./dom.js";
import * as samples from "./samples.js";

const TABS = { overview: "Overview", curves: "Curves", samples: "Samples", spec: "Spec" };

export function open(root) {
  const id = state().get("id") ?? "";
  const tab = state().get("tab") in TABS ? state().get("tab") : "overview";
  const head = h("div");
  const place = h("div");
  const content = { overview, curves: curves.open, samples: samples.open, spec }[tab](place, id);
  let drawn = null;
  root.append(head, tabs(tab), place);
  return {
    stop: content.stop,
    async refresh() {
      document.title = `${id} · posttrain`;
      const job = await read("job", { id });
      if (job !== drawn) head.replaceChildren(...title(job));
      const fresh = job !== drawn;
      drawn = job;
      await content.refresh(job, fresh);
    },
  };
}

function tabs(current) {
  const href = (tab) => changed({ tab: tab === "overview" ? null : tab }, new URLSearchParams({ id: state().get("id") ?? "", ...kept() }));
  return h("nav", { class: "tabs", "aria-label": "Parts of the job" }, Object.entries(TABS).map(([tab, label]) =>
    h("a", { href: href(tab), "aria-current": tab === current ? "page" : null }, label)));
}

// The runs that are compared stay chosen from tab to tab.
function kept() {
  const others = state().getAll("with");
  return others.length === 1 ? { with: others[0] } : {};
}

function title(job) {
  return [h("h1", {}, job.name, " ", phase(job.phase)),
    h("p", { class: "quiet" }, [job.namespace, job.algorithm, job.model, job.accelerator, job.owner].filter(Boolean).join(" · "))];
}

function overview(place) {
  return {
    async refresh(job, fresh) {
      if (!fresh) return;
      place.replaceChildren(...[failure(job), progress(job), about(job), timeline(job), conditions(job), capacity(job), money(job), links(job)].filter(Boolean));
    },
  };
}

function spec(place) {
  return {
    async refresh(job, fresh) {
      if (!fresh) return;
      place.replaceChildren(h("p", {}, link(`/diff?a=${encodeURIComponent(job.id)}`, "Compare with another job")),
        h("pre", { tabindex: "0", role: "region", "aria-label": "Spec" }, job.spec));
    },
  };
}

function failure(job) {
  const it = job.failure;
  if (!it) return null;
  const where = [it.pod && `pod ${it.pod}`, it.node && `node ${it.node}`, it.exitCode != null && `exit code ${it.exitCode}`, it.time && `${ago(it.time)} ago`];
  return h("section", { class: "failure" }, h("h2", {}, `${job.phase === "Failed" ? "Failed" : "Newest failure"}: ${it.failureClass}`),
    h("p", { class: "message" }, it.message), it.hint && h("p", {}, h("strong", {}, "Hint: "), it.hint),
    h("p", { class: "quiet" }, [...where.filter(Boolean), it.reaction].join(" · ")),
    it.log && h("details", {}, h("summary", {}, "End of its log"), h("pre", { tabindex: "0" }, it.log)));
}

function progress(job) {
  if (!job.total) return null;
  const part = job.progress;
  return section("Progress",
    h("progress", { max: job.total, value: job.step, "aria-label": `Step ${job.step} of ${job.total}` }),
    facts([["Step", `${number(job.step)} of ${number(job.total)}`], ["Stage", job.stage], ["Time to the end", job.eta],
      ["Seconds a step", number(part.secondsPerStep)], ["Checkpoint", job.checkpoint && `step ${number(job.checkpoint.step)}`],
      ...Object.entries(job.metrics).map(([name, value]) => [words(name), value])]));
}

function about(job) {
  const labels = Object.entries(job.labels).map(([key, value]) => `${key}=${value}`).join(", ");
  return section("About", facts([["Model", job.model], ["Accelerator", job.accelerator], ["Chips", job.chips], ["Queue", job.queue],
    ["Created", job.created && `${job.created} (${ago(job.created)} ago)`], ["Labels", labels], ["Run directory", job.run],
    ["Preflight", job.preflight?.line], ...Object.entries(job.restartsByClass).map(([kind, count]) => [`Restarts: ${kind}`, count])]));
}

function timeline(job) {
  const entries = job.timeline;
  if (!entries.length) return null;
  const times = entries.flatMap((entry) => [entry.began, entry.ended ?? entry.began]).map(Date.parse);
  const [first, last] = [Math.min(...times), Math.max(...times)];
  const span = last - first || 1;
  const rows = entries.map((entry) => {
    const start = Date.parse(entry.began);
    const bar = h("span", { class: `bar ${entry.kind}` });
    bar.style.left = `${(100 * (start - first)) / span}%`;
    bar.style.width = `${Math.max(0.5, (100 * (Date.parse(entry.ended ?? entry.began) - start)) / span)}%`;
    return [when(entry.began), duration(entry.seconds), h("span", { class: "track", "aria-hidden": "true" }, bar), `${entry.kind}: ${entry.text}`];
  });
  return section("Timeline", table(["Began (UTC)", "For", "When", "What"], rows, "Timeline"));
}

function conditions(job) {
  if (!job.conditions.length) return null;
  return section("Conditions", table(["Condition", "Status", "Reason", "Message", "Since"], job.conditions.map((each) => [
    each.type, each.status, each.reason, each.message, `${ago(each.lastTransitionTime)} ago`]), "Conditions"));
}

function capacity(job) {
  const attempts = job.capacity.attempts ?? [];
  if (!attempts.length) return null;
  return section("Attempts to obtain chips", table(["Option", "Zone", "Began (UTC)", "For", "Outcome"], attempts.map((each) => [
    each.option, each.zone ?? "", when(each.started), duration((Date.parse(each.ready ?? each.ended ?? new Date()) - Date.parse(each.started)) / 1000),
    each.ready && !each.ended ? "chips are ready" : each.outcome || "in progress"]), "Attempts to obtain chips"));
}

function money(job) {
  const spent = ["queueing", "provisioning", "compiling", "restoring", "training", "held"].map((kind) => [words(kind), job.time[kind] ? duration(job.time[kind]) : ""]);
  const pairs = [["Cost", job.cost.amount], ["Chip-hours", job.cost.chipHours], ["Goodput", job.time.goodput], ...spent];
  return pairs.some(([, value]) => value) ? section("Time and cost", facts(pairs)) : null;
}

function links(job) {
  const shown = Object.entries(job.links).filter(([, value]) => value);
  if (!shown.length) return null;
  const value = (text) => (/^https?:\/\//.test(text) ? h("a", { href: text, target: "_blank", rel: "noreferrer noopener" }, text) : h("code", {}, text));
  return section("Links", facts(shown.map(([name, text]) => [words(name), value(text)])));
}

// evalReward -> Eval reward
function words(name) {
  const spaced = name.replace(/([A-Z])/g, (letter) => ` ${letter.toLowerCase()}`);
  return spaced[0].toUpperCase() + spaced.slice(1);
}
