// The views of queues: their cards, one queue, its jobs, and one job.

import { h, get, link } from "./dom.js";
import { Plots, advices, askNumber, changer, confirm, figure, make, millis, moment, number, say, seconds, table } from "./parts.js";

const STATES = ["ready", "running", "scheduled", "waiting", "dead", "finished", "damaged"];

function counts(name, status) {
  return h("dl", { class: "figures" }, STATES.filter((state) => status.counts[state] > 0 || !["waiting", "damaged"].includes(state)).map((state) =>
    figure(state, h("a", { href: link("jobs", { queue: name, state }) }, number(status.counts[state])))));
}

function speeds(queue) {
  const oldest = queue.status.oldest_ready_for;
  const whose = queue.of_this_process ? " (this process)" : "";
  const rate = (name, value) => (value === null ? null : figure(`${name}${whose}`, number(value), `over the last minute${queue.of_this_process ? ", of this process alone" : ""}`));
  return h("dl", { class: "figures" },
    rate("pushes a second", queue.pushes_per_second),
    rate("starts a second", queue.starts_per_second),
    rate("ends a second", queue.ends_per_second),
    figure("oldest ready", oldest === null || oldest === undefined ? "–" : h("a", { href: link("job", { queue: queue.name, id: queue.status.oldest_ready }) }, seconds(oldest / 1000)), "the age of the ready job that has waited longest"));
}

/** A queue in the list. */
export function queueCard(queue, writes) {
  return h("article", { class: "card", key: `queue ${queue.name}`, "aria-label": `Queue ${queue.name}` },
    h("h3", null, h("a", { href: link("queue", { name: queue.name }) }, queue.name), queue.paused ? h("span", { class: "state paused" }, "paused") : null),
    advices(queue, writes),
    counts(queue.name, queue.status),
    speeds(queue));
}

const LINES = [
  { name: "waiting", title: "Jobs that wait" },
  { name: "running", title: "Jobs that run" },
  { name: "pushes_per_second", title: "Pushes a second" },
  { name: "starts_per_second", title: "Starts a second" },
  { name: "ends_per_second", title: "Ends a second" },
];

/** How many workers of a queue are shown at most, and how many kinds and jobs of each. */
const [WORKERS, KINDS, JOBS] = [20, 6, 8];

const many = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

/** All workers in a sentence: 3 workers, 14 of 16 slots busy. */
function fleetText(fleet) {
  const said = [];
  if (!fleet.taking) said.push(fleet.count ? "No worker takes jobs" : "It has no worker: start a program with a runner of it, or that calls accept");
  else said.push(`${many(fleet.taking, "worker")}, ${fleet.slots === null ? `${many(fleet.busy, "slot")} busy` : `${number(fleet.busy)} of ${many(fleet.slots, "slot")} busy`}`);
  if (fleet.stopping) said.push(`${number(fleet.stopping)} stop${fleet.stopping === 1 ? "s" : ""}`);
  if (fleet.silent) said.push(`${number(fleet.silent)} ${fleet.silent === 1 ? "is" : "are"} no longer heard of`);
  return `${said.join("; ")}.`;
}

/** When a worker was heard of, or what happens to the jobs of a silent one. */
function heardOf(worker) {
  if (worker.is_stopping && !worker.is_silent) return h("span", { class: "waits" }, "stopping");
  // Of the worker of a store, only the jobs are known.
  if (!worker.is_silent) return worker.silent_for ? `${seconds(worker.silent_for / 1000)} ago` : worker.process === null ? "–" : "now";
  const left = worker.lease_left === null ? "when its program is started again" : worker.lease_left === 0 ? "now" : `in ${seconds(worker.lease_left / 1000)}`;
  const jobs = worker.busy === 0 ? "it has no job" : worker.busy === 1 ? `its job comes back ${left}` : `its ${number(worker.busy)} jobs come back ${left}`;
  return h("span", { class: "stuck" }, `no longer heard of; ${jobs}`);
}

function workerRow(worker, at, queue) {
  const kinds = worker.kinds && worker.kinds.slice(0, KINDS);
  const rest = kinds ? worker.kinds.length - kinds.length : 0;
  const jobs = worker.jobs.slice(0, JOBS);
  const job = (job) => h("li", { key: job.id }, h("a", { href: link("job", { queue, id: job.id }) }, job.id), ` ${job.kind}, for ${seconds(job.ran_for / 1000)}`);
  const more = worker.busy - jobs.length;
  return h("tr", { key: at },
    h("td", null, worker.name === null ? "–" : worker.name),
    h("td", null, [worker.host, worker.process].filter((part) => part !== null).join(":") || "–"),
    h("td", null, [worker.language, worker.version].filter(Boolean).join(" ") || "–"),
    h("td", null, kinds ? `${kinds.join(", ")}${rest > 0 ? `, and ${number(rest)} more` : ""}` : "all"),
    h("td", null, worker.slots === null ? number(worker.busy) : `${number(worker.busy)} of ${number(worker.slots)}`),
    h("td", null, moment(worker.began)), h("td", null, heardOf(worker)),
    h("td", null, jobs.length ? h("ul", { class: "ids" }, jobs.map(job), more > 0 ? h("li", { key: "more" }, h("a", { href: link("jobs", { queue, state: "running" }) }, `and ${number(more)} more`)) : null) : "–"));
}

/** One queue. */
export class QueueView {
  constructor(params) {
    this.name = params.name;
    this.title = `Queue ${params.name}`;
    this.follows = ["queue", { name: params.name }];
    this.plots = new Plots({ queue: params.name }, LINES);
    this.schedules = null;
    this.fleet = null;
  }

  async read() {
    const schedules = async () => { this.schedules = (await get("schedules", { queue: this.name })).schedules; };
    const fleet = async () => { this.fleet = await get("workers", { queue: this.name, limit: WORKERS }); };
    // The head of the page says whether it is connected.
    await Promise.all([this.plots.read(), schedules().catch(() => {}), fleet().catch((error) => { this.fleet = { failure: error.message }; })]);
  }

  view(queue, writes) {
    const change = (action, rest) => ({ action, queue: this.name, ...rest });
    const resize = () => askNumber("Jobs at once", "Jobs at once", queue.slots, (value) => make(change("set_max_processing", { value })));
    const hour = () => make(change("pause", { seconds: 3600 }));
    const find = (event) => {
      event.preventDefault();
      const id = new FormData(event.target).get("id");
      if (id) location.hash = link("job", { queue: this.name, id });
    };
    const dead = queue.status.counts.dead;
    const requeue = () => confirm(`Requeue ${number(dead)} dead jobs`, [h("p", null, "Each of them runs again, with its attempts counted anew.")], () => make(change("requeue_dead")));
    return [
      h("h2", { key: "title" }, queue.name, queue.paused ? h("span", { class: "state paused" }, "paused") : null),
      advices(queue, writes),
      h("div", { class: "buttons", key: "buttons", role: "group", "aria-label": "Steer the queue" },
        queue.paused ? changer("Resume", change("resume"), writes) : changer("Pause", change("pause"), writes),
        queue.paused ? null : changer("Pause for an hour", change("pause"), writes, hour),
        queue.can_resize && queue.slots ? changer(`At once: ${number(queue.slots)}`, null, writes, resize) : null,
        dead ? changer(`Requeue ${number(dead)} dead`, null, writes, requeue) : null,
        h("a", { class: "button", href: link("jobs", { queue: this.name }) }, "Jobs"),
        h("form", { class: "search", role: "search", onsubmit: find }, h("label", null, "Job by its id ", h("input", { name: "id", required: true })), h("button", null, "Find"))),
      h("section", { key: "numbers", "aria-label": "Numbers" }, counts(this.name, queue.status), speeds(queue), this.state(queue)),
      this.plots.view(),
      this.workers(),
      this.limits(queue),
      this.kinds(queue),
      this.periodic(writes),
    ];
  }

  state(queue) {
    const said = [];
    if (queue.paused) said.push(queue.pause_left === null ? "It is paused until somebody resumes it." : `It is paused for another ${seconds(queue.pause_left / 1000)}.`);
    if (queue.gate) said.push(`The gate “${queue.gate.name}” has been closed for ${seconds(queue.gate.closed_for / 1000)}.`);
    else said.push("No gate is closed.");
    said.push(queue.slots ? `Its runner runs up to ${number(queue.slots)} jobs at once.` : "It has no runner in this program.");
    return h("p", null, said.join(" "));
  }

  workers() {
    const { fleet } = this;
    if (!fleet) return null;
    if (fleet.failure) return h("section", { key: "workers" }, h("h3", null, "Workers"), h("p", { class: "stuck" }, fleet.failure));
    const rows = fleet.workers.map((worker, at) => workerRow(worker, at, this.name));
    const more = fleet.count - rows.length;
    return h("section", { key: "workers" }, h("h3", null, "Workers"),
      h("p", { class: `summary ${fleet.workers.some((worker) => worker.is_silent && worker.busy) ? "stuck" : ""}` }, fleetText(fleet)),
      rows.length ? table("Workers and the jobs that each of them runs", ["worker", "process", "program", "kinds", "busy", "began", "heard of", "jobs"], rows) : null,
      more > 0 ? h("p", { class: "help" }, `And ${number(more)} more: waterline workers ${this.name} --limit 0, or api/workers.`) : null);
  }

  limits(queue) {
    if (!queue.limits.length) return h("section", { key: "limits" }, h("h3", null, "Limits"), h("p", null, "It has no limit."));
    const rate = (limit) => (limit.rate ? `${number(limit.rate.count)} in ${seconds(limit.rate.per_ms / 1000)}` : "–");
    const each = (limit) => limit.limit === "each key";
    const full = (limit) => (each(limit) ? `up to ${limit.at_once === null ? "any number" : number(limit.at_once)} of each` : limit.at_once ? [h("meter", { min: 0, max: limit.at_once, value: limit.running }), ` ${number(limit.running)} of ${number(limit.at_once)}`] : number(limit.running));
    const rows = queue.limits.map((limit) => h("tr", { key: limit.limit }, h("td", null, limit.limit), h("td", null, full(limit)), h("td", null, rate(limit)), h("td", null, limit.tokens === null ? "–" : `${number(Math.floor(limit.tokens))} of ${number(limit.burst)}`), h("td", null, each(limit) ? "–" : number(limit.held))));
    return h("section", { key: "limits" }, h("h3", null, "Limits"), table("Limits and how full they are", ["limit of", "running", "rate", "tokens", "held"], rows));
  }

  kinds(queue) {
    const rows = queue.kinds.map((kind) => h("tr", { key: kind.kind }, h("td", null, h("a", { href: link("jobs", { queue: this.name, kind: kind.kind }) }, kind.kind)), h("td", null, millis(kind.p50_ms)), h("td", null, millis(kind.p99_ms)), h("td", null, millis(kind.mean_ms)), h("td", null, millis(kind.last_ms)), h("td", null, number(kind.count))));
    return h("section", { key: "kinds" }, h("h3", null, "Run times"),
      rows.length ? table("Attempts that succeeded: p50 and p99 since the page began, and the mean of the last hundred", ["kind", "p50", "p99", "mean", "last", "count"], rows) : h("p", null, "No attempt has succeeded yet."));
  }

  periodic(writes) {
    const rows = (this.schedules || []).map((schedule) => h("tr", { key: schedule.name },
      h("td", null, schedule.name), h("td", null, schedule.schedule || "not registered by this program"), h("td", null, moment(schedule.last_tick)), h("td", null, moment(schedule.next_tick)),
      h("td", null, schedule.last_run ? h("a", { href: link("job", { queue: this.name, id: schedule.last_run }) }, schedule.last_run) : "–"),
      h("td", null, number(schedule.skipped)),
      h("td", { class: "error" }, schedule.damaged || ""),
      h("td", { class: "buttons" }, changer("Remove", { action: "remove_schedule", queue: this.name, name: schedule.name }, writes))));
    return h("section", { key: "schedules" }, h("h3", null, "Schedules"),
      rows.length ? table("Periodic jobs", ["name", "schedule", "last tick", "next tick", "last job", "skipped", "", ""], rows) : h("p", null, "It has no periodic job."));
  }
}

const ALL = { dead: [["Requeue", "requeue_all"], ["Remove", "remove_all"]], scheduled: [["Run now", "run_all_now"], ["Cancel", "cancel_all"]], finished: [["Remove", "remove_all"]], damaged: [["Remove", "remove_all"]] };

/** The jobs of a queue, by state, kind and key. */
export class JobsView {
  constructor(params) {
    this.params = { queue: params.queue, state: params.state || "ready", kind: params.kind, key: params.key };
    this.title = `Jobs of ${params.queue}`;
    this.cursors = [undefined];
    this.follow();
  }

  /** A filter by kind or key reads many rows, so it is polled rarely instead of followed. */
  follow() {
    const params = { ...this.params, cursor: this.cursors[this.cursors.length - 1] };
    const isPlain = !params.kind && !params.key;
    this.follows = isPlain ? ["jobs", params] : null;
    this.reads = ["jobs", params];
  }

  async read() {}

  view(page, writes) {
    const { queue, state, kind, key } = this.params;
    const filter = (event) => {
      event.preventDefault();
      const fields = new FormData(event.target.closest("form"));
      location.hash = link("jobs", { queue, state: fields.get("state"), kind: fields.get("kind"), key: fields.get("key") });
    };
    const turn = (change) => () => {
      change();
      this.follow();
      window.dispatchEvent(new Event("turned"));
    };
    const rows = page.jobs.map((job) => this.row(job, queue));
    const all = (ALL[state] || [["Cancel", "cancel_all"]]).map(([label, action]) => changer(`${label} all of these`, null, writes, () => this.askAll(label, action)));
    return [
      h("h2", { key: "title" }, "Jobs of ", h("a", { href: link("queue", { name: queue }) }, queue)),
      h("form", { class: "filter", key: "filter", role: "search", onsubmit: filter },
        h("label", null, "State ", h("select", { name: "state", onchange: filter }, STATES.map((name) => h("option", { value: name, selected: name === state }, name)))),
        h("label", null, "Kind ", h("input", { name: "kind", value: kind || "" })),
        h("label", null, "Key ", h("input", { name: "key", value: key || "" })),
        h("button", null, "Show")),
      rows.length ? h("div", { key: "list" }, table(`Jobs that are ${state}`, ["id", "kind", "since", "due", "key", "failures", "error"], rows)) : h("p", { key: "none" }, `No job that is ${state} fits.`),
      kind || key ? h("p", { key: "read", class: "help" }, `${number(page.read)} rows were read, of ${number(page.most_read)} at most a page.${page.next ? " There are more behind them." : ""}`) : null,
      h("p", { class: "buttons", key: "pages" },
        this.cursors.length > 1 ? h("button", { type: "button", onclick: turn(() => this.cursors.pop()) }, "Back") : null,
        page.next ? h("button", { type: "button", onclick: turn(() => this.cursors.push(page.next)) }, "Next page") : null,
        rows.length ? all : null),
    ];
  }

  row(job, queue) {
    return h("tr", { key: job.id },
      h("td", null, h("a", { href: link("job", { queue, id: job.id }) }, job.id)),
      h("td", null, job.kind), h("td", null, moment(job.since)), h("td", null, job.run_at === null ? "–" : moment(job.run_at)),
      h("td", null, job.key === null ? "–" : job.key), h("td", null, number(job.failures)),
      h("td", { class: "error" }, job.damaged || job.error || (job.held_by ? `held by ${job.held_by}` : "")));
  }

  async askAll(label, action) {
    let counted;
    try {
      counted = await get("count", this.params);
    } catch (error) {
      return say(error.message, "stuck");
    }
    const { count, is_all: isAll, read } = counted;
    const about = isAll ? `These are all jobs that the filter shows: ${number(count)}.` : `These are the first ${number(count)}, of ${number(read)} rows that were read. There are more behind them.`;
    return confirm(`${label} ${number(count)} jobs`, [h("p", null, about)], () => make({ action, ...this.params, count }));
  }
}

const LABELS = { run_now: "Run now", requeue: "Requeue", cancel: "Cancel", remove: "Remove" };

/** One job. */
export class JobView {
  constructor(params) {
    this.params = params;
    this.title = `Job ${params.id}`;
    this.follows = ["job", params];
  }

  async read() {}

  view(job, writes) {
    const { queue, id } = this.params;
    const ids = (ids) => (ids.length ? h("ul", { class: "ids" }, ids.map((other) => h("li", { key: other }, h("a", { href: link("job", { queue, id: other }) }, other)))) : h("p", null, "None."));
    const json = (value) => h("pre", { tabindex: 0 }, JSON.stringify(value, null, 2));
    const cut = job.payload.is_cut ? h("p", { class: "help" }, `It has ${number(job.payload.bytes)} bytes. The rest is cut off here.`) : null;
    return [
      h("h2", { key: "title" }, job.id, " ", h("span", { class: `state ${job.state}` }, job.state)),
      h("p", { key: "of" }, "A job of ", h("a", { href: link("queue", { name: queue }) }, queue), ", of the kind ", h("a", { href: link("jobs", { queue, state: job.state, kind: job.kind }) }, job.kind)),
      h("div", { class: "buttons", key: "buttons", role: "group", "aria-label": "Steer the job" }, job.actions.map((action) => changer(LABELS[action], { action, queue, id }, writes))),
      job.error || job.damaged ? h("section", { key: "error" }, h("h3", null, "Error"), h("pre", { class: "error", tabindex: 0 }, job.damaged || job.error)) : null,
      job.progress ? h("section", { key: "progress" }, h("h3", null, "Progress"), h("p", null, h("progress", { max: 1, value: job.progress.fraction, "aria-label": "Progress" }), ` ${Math.round(job.progress.fraction * 100)} % ${job.progress.note} `, moment(job.progress.at))) : null,
      h("dl", { class: "figures", key: "figures" },
        figure("failures", number(job.failures), "attempts that failed"), figure("crashes", number(job.crashes), "deaths of the process while it ran"),
        figure("priority", job.priority), figure("pushed", moment(job.pushed_at)), figure("in this state since", moment(job.since)),
        job.run_at === null ? null : figure("due", moment(job.run_at)), job.expires_at === null ? null : figure("expires", moment(job.expires_at)),
        job.kept_until === null ? null : figure("kept until", moment(job.kept_until)), job.key === null ? null : figure("key", job.key),
        job.held_by === null ? null : figure("held by", job.held_by), job.skipped === null ? null : figure("skipped, since it was", job.skipped),
        job.runs_alone ? figure("runs alone", "yes", "its process died while it ran") : null, job.resubmitted ? figure("runs once more", "yes", "it was pushed again while it ran") : null),
      h("section", { key: "payload" }, h("h3", null, job.payload.form === "hex" ? "Payload, in hex" : "Payload"), h("pre", { tabindex: 0 }, job.payload.text), cut),
      job.data === null ? null : h("section", { key: "data" }, h("h3", null, "Data that its worker left"), json(job.data)),
      Object.keys(job.meta).length ? h("section", { key: "meta" }, h("h3", null, "Metadata"), json(job.meta)) : null,
      h("section", { key: "after" }, h("h3", null, "Waits for"), ids(job.after), job.waits_for > job.after.length ? h("p", null, `${number(job.waits_for)} in all.`) : null),
      h("section", { key: "before" }, h("h3", null, "Is awaited by"), ids(job.before), job.before.length >= job.related_most ? h("p", null, "And maybe more.") : null),
    ];
  }
}
