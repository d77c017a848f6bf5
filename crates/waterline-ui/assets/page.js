// The page: shows the view that the address names, and keeps it up to date.

import { h, draw, follow, get } from "./dom.js";
import { StoredView, StreamView, pipeline, savedCard, streamCard } from "./streams.js";
import { JobView, JobsView, QueueView, queueCard } from "./queues.js";

const main = document.getElementById("main");
const connection = document.getElementById("connection");

/** Whether changes are allowed, and otherwise why not. */
let writes = { allowed: false, why: "" };
let current = null;

/** All consumers and queues, or those of one sort. */
class Overview {
  constructor(sort) {
    this.sort = sort;
    this.title = { streams: "Streams", queues: "Queues" }[sort] || "Overview";
    this.follows = ["overview", {}];
  }

  async read() {}

  view(overview, writes) {
    const { streams, queues, pipelines } = overview;
    const stored = overview.stored || [];
    const isShown = (sort) => !this.sort || this.sort === sort;
    const all = [...(isShown("streams") ? [...streams, ...stored] : []), ...(isShown("queues") ? queues : [])];
    const [stuck, waits] = ["needs_you", "waits"].map((verdict) => all.filter((row) => row.verdict === verdict).length);
    const others = waits ? `${waits} wait${waits === 1 ? "s" : ""}.` : "";
    const words = `${stuck === 0 ? "Nothing needs you." : `${stuck} of ${all.length} need${stuck === 1 ? "s" : ""} you.`} ${others}`;
    return [
      h("h2", { key: "title" }, this.title),
      h("p", { key: "stuck", class: `summary ${stuck ? "stuck" : "good"}` }, words),
      overview.why_read_only ? h("p", { key: "why", class: "help" }, `Read-only: ${overview.why_read_only}.`) : null,
      isShown("streams") ? pipelines.map((one, at) => pipeline(one, streams, at)) : null,
      isShown("streams") && streams.length ? h("section", { key: "streams" }, h("h3", null, "Streams"), h("div", { class: "cards" }, streams.map((stream) => streamCard(stream, writes)))) : null,
      isShown("streams") && stored.length ? h("section", { key: "stored" }, h("h3", null, "Streams, as they are saved"), h("div", { class: "cards" }, stored.map((consumer) => savedCard(consumer, writes)))) : null,
      isShown("queues") && queues.length ? h("section", { key: "queues" }, h("h3", null, "Queues"), h("div", { class: "cards" }, queues.map((queue) => queueCard(queue, writes)))) : null,
      all.length ? null : h("p", { key: "empty" }, "There is nothing here: the program has put nothing of this sort on the page."),
    ].flat().filter(Boolean);
  }
}

const VIEWS = {
  "": () => new Overview(),
  streams: () => new Overview("streams"),
  queues: () => new Overview("queues"),
  stream: (params) => new StreamView(params),
  stored: (params) => new StoredView(params),
  queue: (params) => new QueueView(params),
  jobs: (params) => new JobsView(params),
  job: (params) => new JobView(params),
};

function nav(name) {
  const entry = (view, label, views) => h("a", { href: `#/${view}`, key: view, "aria-current": views.includes(name) ? "page" : null }, label);
  draw(document.getElementById("nav"), [entry("", "Overview", [""]), entry("streams", "Streams", ["streams", "stream", "stored"]), entry("queues", "Queues", ["queues", "queue", "jobs", "job"])]);
}

function redraw() {
  if (!current) return;
  const { data, failure, view } = current;
  if (failure) draw(main, [h("h2", { key: "title" }, view.title), h("p", { key: "failure", class: "advice stuck" }, failure)]);
  else if (data) draw(main, view.view(data, writes).flat(9).filter(Boolean));
}

function connected(is) {
  connection.textContent = is ? "live" : "not connected; it tries again";
  connection.className = is ? "good" : "stuck";
}

function told(data) {
  connected(true);
  if (data.writes !== undefined) writes = { allowed: data.writes, why: data.why_read_only || "" };
  current.data = data;
  current.failure = null;
  redraw();
}

/** Shows an error that the program has answered. */
function failed(text) {
  connected(true);
  current.failure = text;
  redraw();
}

/** Begins to follow the current view. */
function begin() {
  const mine = current;
  if (mine.stop) mine.stop();
  mine.stop = null;
  if (mine.view.follows) {
    const only = (then) => (value) => { if (current === mine) then(value); };
    mine.stop = follow(...mine.view.follows, only(told), only(failed), only(() => connected(false)));
  } else {
    read();
  }
}

/** Reads the data that is not followed. */
async function read() {
  const mine = current;
  const { view } = mine;
  try {
    if (!view.follows) {
      const begun = performance.now();
      mine.due = Infinity;
      try {
        const data = await get(...view.reads);
        if (current === mine) told(data);
      } finally {
        // Read again so rarely that it takes at most a hundredth of the time.
        mine.due = performance.now() + Math.max(3000, 100 * (performance.now() - begun));
      }
    }
    await view.read();
  } catch (error) {
    if (current === mine) failed(error.message);
  }
  if (current === mine) redraw();
}

function show() {
  const [name, query] = (location.hash.replace(/^#\/?/, "") || "").split("?");
  const make = VIEWS[name] || VIEWS[""];
  if (current && current.stop) current.stop();
  const view = make(Object.fromEntries(new URLSearchParams(query || "")));
  const first = !current;
  current = { view, data: null, failure: null, stop: null };
  document.title = `${view.title} – ${document.querySelector("h1").textContent}`;
  nav(name);
  draw(main, [h("p", { key: "loading" }, "Loading …")]);
  if (!first) main.focus();
  begin();
  if (view.follows) read();
}

async function start() {
  try {
    const overview = await get("overview");
    writes = { allowed: overview.writes, why: overview.why_read_only || "" };
    document.getElementById("logout").hidden = !overview.has_token;
  } catch (error) {
    connected(false);
  }
  window.addEventListener("hashchange", show);
  window.addEventListener("changed", read);
  window.addEventListener("redraw", redraw);
  window.addEventListener("turned", begin);
  // Plots and lists that are not followed are polled, but only while the page is visible.
  setInterval(() => { if (!document.hidden && current && (current.view.follows || performance.now() >= current.due)) read(); }, 3000);
  document.addEventListener("visibilitychange", () => {
    if (!current) return;
    if (document.hidden && current.stop) {
      current.stop();
      current.stop = null;
    } else if (!document.hidden && !current.stop) {
      begin();
    }
  });
  show();
}

start();
