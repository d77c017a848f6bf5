// The views of consumers: their cards, the graph of a pipeline, and one consumer with its window.

import { h, get, link } from "./dom.js";
import { Plots, advices, askNumber, changer, confirm, figure, make, moment, number, say, seconds, strip, table, tone } from "./parts.js";

function figures(stream) {
  const status = stream.status;
  const behind = stream.behind_seconds === null ? "–" : `${stream.behind_at_least && stream.behind_seconds > 0 ? "over " : ""}${seconds(stream.behind_seconds)}`;
  return h("dl", { class: "figures" },
    figure("watermark", number(status.last_processed), "everything up to here is processed and saved"),
    figure("head", number(status.head), "the last job that the source has"),
    figure("lag", status.lag === null ? "unknown" : number(status.lag), "jobs that are not processed"),
    figure("behind", behind, "the time for which the oldest unprocessed job has been there"),
    figure("jobs a second", number(stream.jobs_per_second), "over the last minute"),
    figure("time left", seconds(stream.seconds_left), "to the head, at the speed of the last minute"),
    figure("in flight", number(status.processing)),
    figure("done ahead", number(status.done_ahead), "finished above the watermark"),
    figure("failed", number(status.failed), "attempts since the consumer started"),
    status.absent > 0 ? figure("gaps", number(status.absent), "indices without a job, since the consumer started") : null,
    status.parked > 0 ? figure("parked", h("a", { href: link("stream", { name: stream.name }) }, number(status.parked)), "jobs that failed for good and were passed") : null);
}

/** A consumer in the list. */
export function streamCard(stream, writes) {
  return h("article", { class: "card", key: `stream ${stream.name}`, "aria-label": `Stream ${stream.name}` },
    h("h3", null, h("a", { href: link("stream", { name: stream.name }) }, stream.name), " ", h("span", { class: `state ${stream.status.state}` }, stream.status.state)),
    advices(stream, writes),
    figures(stream));
}

function savedFigures(consumer) {
  return h("dl", { class: "figures" },
    figure("watermark", number(consumer.last_processed), "everything up to here is processed and saved"),
    figure("next", number(consumer.next), "the lowest job that is not done"),
    figure("done ahead", number(consumer.done_ahead), "finished above the watermark"),
    figure("parked", number(consumer.parked), "jobs that failed for good and were passed"),
    figure("moved", moment(consumer.moved_at), "the time at which the watermark moved last"));
}

/** A consumer of another program in the list, with its saved state. */
export function savedCard(consumer, writes) {
  return h("article", { class: "card", key: `saved ${consumer.name}`, "aria-label": `Saved stream ${consumer.name}` },
    h("h3", null, h("a", { href: link("stored", { name: consumer.name }) }, consumer.name)),
    advices(consumer, writes),
    savedFigures(consumer));
}

/** One consumer of another program, with its saved state. */
export class StoredView {
  constructor(params) {
    this.title = `Stream ${params.name}`;
    this.follows = ["stored", { name: params.name }];
  }

  async read() {}

  view(consumer, writes) {
    const jobs = (consumer.jobs || []).map((job) => h("tr", { key: job.index }, h("td", null, number(job.index)), h("td", null, number(job.attempts)), h("td", null, moment(job.parked_at)), h("td", { class: "error" }, job.error)));
    const moves = (consumer.moves || []).map((made, nth) => h("tr", { key: nth }, h("td", null, moment(made.at)), h("td", null, made.kind), h("td", null, number(made.from)), h("td", null, number(made.to)), h("td", null, made.reason)));
    const halt = consumer.last_halt;
    return [
      h("h2", { key: "title" }, consumer.name),
      advices(consumer, writes),
      savedFigures(consumer),
      h("p", { key: "owns" }, "Its tables and logs: ", owned(consumer.owns), "."),
      h("section", { key: "parked" }, h("h3", null, "Parked jobs"), jobs.length ? table(`${number(consumer.parked)} jobs failed for good and were passed`, ["index", "attempts", "parked", "error"], jobs) : h("p", null, "No job is parked.")),
      h("section", { key: "history" }, h("h3", null, "History"),
        halt ? h("p", { class: "error" }, "The last halt, at ", number(halt.index), ", ", moment(halt.at), `: ${halt.error}`) : h("p", null, "No halt is on record."),
        moves.length ? table("Moves that somebody made on purpose", ["time", "kind", "from", "to", "reason"], moves) : h("p", null, "Nobody has moved it on purpose.")),
    ];
  }
}

/** The stages of a pipeline, upstream first, with the slowest one marked. */
export function pipeline(pipeline, streams, at) {
  const stage = (name, nth) => {
    const stream = streams.find((stream) => stream.name === name);
    if (!stream) return null;
    const isSlowest = pipeline.slowest === name;
    const before = stream.upstreams.filter((upstream) => upstream !== pipeline.stages[nth - 1]);
    return h("li", { class: `stage ${tone(stream.verdict)}${isSlowest ? " slowest" : ""}`, key: name },
      h("a", { href: link("stream", { name }) }, name),
      isSlowest ? h("strong", { class: "badge" }, "slowest") : null,
      h("span", null, `${number(stream.jobs_per_second)}/s`),
      h("span", null, `lag ${stream.status.lag === null ? "unknown" : number(stream.status.lag)}`),
      before.length ? h("span", null, `after ${before.join(", ")}`) : null);
  };
  return h("section", { class: "pipeline", key: `pipeline ${at}` },
    h("h3", null, "Pipeline"),
    h("ol", null, pipeline.stages.map(stage)));
}

const LINES = [
  { name: "lag", title: "Lag, in jobs" },
  { name: "behind_seconds", title: "Behind, in seconds" },
  { name: "jobs_per_second", title: "Jobs a second" },
  { name: "seconds_left", title: "Time left, in seconds" },
  { name: "head", title: "Head" },
  { name: "watermark", title: "Watermark" },
];

/** The tables and logs that belong to a consumer, in words. */
function owned(owns) {
  return owns && owns.length ? owns.map((part) => `the ${part.what} "${part.name}"`).join(", ") : "nothing is said";
}

/** What there is of a saved consumer, and how far it is. */
function whole(consumer) {
  const done = consumer.last_processed === null ? "with no watermark so far" : `processed up to ${number(consumer.last_processed)}`;
  return `"${consumer.name}", ${done}, with ${number(consumer.parked)} parked jobs and its history; its tables and logs: ${owned(consumer.owns)}.`;
}

/** Asks whose name a consumer takes. Says first what comes and what goes. */
async function askReplace(stream) {
  let saved;
  try {
    saved = (await get("saved")).consumers;
  } catch (error) {
    say(error.message, "stuck");
    return;
  }
  const own = saved.find((consumer) => consumer.name === stream.progress);
  const others = saved.filter((consumer) => consumer !== own);
  if (!own || !others.length) {
    say("There is no other saved consumer whose name it could take.", "stuck");
    return;
  }
  let to = others[0];
  const choose = (event) => { to = others[event.target.selectedIndex]; };
  const field = h("label", null, "The name that it takes ", h("select", { onchange: choose }, others.map((other) => h("option", { value: other.name }, other.name))));
  const warn = () => confirm("Replace", [h("p", null, "What comes: ", whole(own)), h("p", null, "What goes: ", whole(to))], () => make({ action: "replace", stream: stream.name, name: to.name }));
  confirm("Take its name", [field], warn);
}

/** One consumer. */
export class StreamView {
  constructor(params) {
    this.name = params.name;
    this.title = `Stream ${params.name}`;
    this.follows = ["stream", { name: params.name }];
    this.plots = new Plots({ stream: params.name }, LINES);
    this.parked = { from: [0], page: null, error: null };
    this.moves = { page: null, error: null };
  }

  /** Reads the data that is not followed. */
  async read() {
    const of = async (place, view, params) => {
      try {
        place.page = await get(view, params);
        place.error = null;
      } catch (error) {
        place.error = error.message;
      }
    };
    const from = this.parked.from[this.parked.from.length - 1];
    await Promise.all([
      this.plots.read(),
      of(this.parked, "parked", { stream: this.name, from, limit: 20 }),
      of(this.moves, "history", { stream: this.name, limit: 20 }),
    ]);
  }

  view(stream, writes) {
    const status = stream.status;
    const isPaused = status.state === "paused";
    const change = (action, rest) => ({ action, stream: this.name, ...rest });
    const ask = (title, action, now) => () => askNumber(title, title, now, (value) => make(change(action, { value })));
    return [
      h("h2", { key: "title" }, stream.name, " ", h("span", { class: `state ${status.state}` }, status.state)),
      advices(stream, writes),
      h("div", { class: "buttons", key: "buttons", role: "group", "aria-label": "Steer the consumer" },
        isPaused ? changer("Resume", change("resume"), writes) : changer("Pause", change("pause"), writes),
        changer("Look at the source", change("check"), writes),
        changer(`At once: ${number(stream.strip.max_processing)}`, null, writes, ask("Jobs at once", "set_max_processing", stream.strip.max_processing)),
        changer(`Search ahead: ${stream.strip.max_search_ahead === null ? "no limit" : number(stream.strip.max_search_ahead)}`, null, writes, ask("Search ahead", "set_max_search_ahead", stream.strip.max_search_ahead)),
        changer("Take another name", null, writes, () => askReplace(stream))),
      figures(stream),
      h("p", { key: "owns" }, "Its tables and logs: ", owned(stream.owns), "."),
      h("section", { key: "window", "aria-label": "Window" }, h("h3", null, "Window"), strip(stream.strip)),
      this.plots.view(),
      this.attempts(stream.strip),
      this.parkedJobs(writes),
      this.history(stream),
    ];
  }

  attempts(strip) {
    const running = strip.running.map((attempt) => h("tr", { key: attempt.index }, h("td", null, number(attempt.index)), h("td", null, number(attempt.attempt)), h("td", null, "runs for ", seconds(attempt.elapsed / 1000)), h("td", null, "")));
    const retries = strip.retries.map((job) => h("tr", { key: `r${job.index}` },
      h("td", null, number(job.index)), h("td", null, number(job.attempt)),
      h("td", null, job.retry_in > 0 ? `again in ${seconds(job.retry_in / 1000)}` : "as soon as a slot is free"),
      h("td", { class: "error" }, job.error)));
    const more = strip.retrying > strip.retries.length ? h("p", null, `${number(strip.retrying - strip.retries.length)} more wait for their next attempt.`) : null;
    return h("section", { key: "attempts" }, h("h3", null, "Attempts"),
      running.length + retries.length ? table("Jobs that run, and jobs that wait for their next attempt", ["index", "attempt", "next", "error"], [...running, ...retries]) : h("p", null, "Nothing runs, and nothing waits for its next attempt."),
      more);
  }

  parkedJobs(writes) {
    const { page, error, from } = this.parked;
    const title = h("h3", null, "Parked jobs");
    if (error || !page) return h("section", { key: "parked" }, title, h("p", null, error || "Loading …"));
    if (!page.count) return h("section", { key: "parked" }, title, h("p", null, "No job is parked."));
    const rows = page.jobs.map((job) => h("tr", { key: job.index },
      h("td", null, number(job.index)), h("td", null, number(job.attempts)), h("td", null, moment(job.parked_at)), h("td", { class: "error" }, job.error),
      h("td", { class: "buttons" }, job.redrive_wanted ? "runs in the next life " : null,
        changer("Redrive", { action: "redrive", stream: this.name, index: job.index }, writes),
        changer("Discard", { action: "discard", stream: this.name, index: job.index }, writes))));
    const turn = (change) => () => {
      change();
      this.read().then(() => window.dispatchEvent(new Event("redraw")));
    };
    const all = () => confirm(`Redrive all ${number(page.count)}`, [h("p", null, "Each of them runs once more.")], () => make({ action: "redrive_all", stream: this.name }));
    return h("section", { key: "parked" }, title,
      table(`${number(page.count)} jobs failed for good and were passed`, ["index", "attempts", "parked", "error", ""], rows),
      h("p", { class: "buttons" },
        changer("Redrive all", null, writes, all),
        from.length > 1 ? h("button", { type: "button", onclick: turn(() => from.pop()) }, "Back") : null,
        page.next !== null ? h("button", { type: "button", onclick: turn(() => from.push(page.next)) }, "Next page") : null));
  }

  history(stream) {
    const { page, error } = this.moves;
    const halt = stream.last_halt ? h("p", { class: "error" }, "The last halt, at ", number(stream.last_halt.index), ", ", moment(stream.last_halt.at), `: ${stream.last_halt.error}`) : h("p", null, "No halt is on record.");
    const rows = page ? page.moves.map((made, nth) => h("tr", { key: nth }, h("td", null, moment(made.at)), h("td", null, made.kind), h("td", null, number(made.from)), h("td", null, number(made.to)), h("td", null, made.reason))) : [];
    const moves = rows.length ? table("Moves that somebody made on purpose", ["time", "kind", "from", "to", "reason"], rows) : h("p", null, error || "Nobody has moved it on purpose.");
    return h("section", { key: "history" }, h("h3", null, "History"), halt, moves);
  }
}
