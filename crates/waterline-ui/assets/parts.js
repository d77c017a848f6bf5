// Parts that several views share: formatted numbers and times, the sentence with its button, plots,
// the window, and the dialog before a change.

import { h, draw, get, post } from "./dom.js";

/** A number with separated thousands. */
export function number(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value;
  if (Number.isInteger(value)) return value.toLocaleString("en").replaceAll(",", "\u202f");
  return value.toLocaleString("en", { maximumFractionDigits: 2 });
}

/** A duration in its two largest units. */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 10) return `${Math.round(value * 10) / 10} s`;
  const all = Math.round(value);
  if (all < 60) return `${all} s`;
  if (all < 3600) return `${Math.floor(all / 60)} min ${all % 60} s`;
  if (all < 86400) return `${Math.floor(all / 3600)} h ${Math.floor((all % 3600) / 60)} min`;
  return `${Math.floor(all / 86400)} d ${Math.floor((all % 86400) / 3600)} h`;
}

/** A duration in milliseconds. */
export function millis(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 10000) return seconds(value / 1000);
  if (value >= 1) return `${Math.round(value * 10) / 10} ms`;
  return `${Math.round(value * 1000)} µs`;
}

/** A moment, with the date if it is not today. */
export function moment(value) {
  if (value === null || value === undefined) return "–";
  const time = new Date(Number(value));
  const isToday = time.toDateString() === new Date().toDateString();
  const text = isToday ? time.toLocaleTimeString() : time.toLocaleString();
  return h("time", { datetime: time.toISOString(), title: time.toString() }, text);
}

const WORDS = { goes_well: "goes well", waits: "waits", needs_you: "needs you" };

/** The class of a verdict: its colour. */
export const tone = (verdict) => ({ goes_well: "good", needs_you: "stuck" })[verdict] || verdict;

/** Why something does not move, and what is left over. */
export function advices(row, writes) {
  return [row.advice, ...row.also].map((one) => advice(one, writes, row.name));
}

/** The sentence that says why something does not move, and the action beside it. */
function advice(advice, writes, name) {
  const action = advice.action;
  let button = null;
  if (action && action.link) button = h("a", { class: "button", href: action.link }, action.label);
  else if (action) button = changer(action.label, action.change, writes);
  return h("div", { class: `advice ${tone(advice.verdict)}`, key: `advice ${name} ${advice.reason}` },
    h("span", { class: "tone" }, WORDS[advice.verdict] || advice.verdict),
    h("p", { class: "sentence" }, advice.sentence),
    advice.help ? h("p", { class: "help" }, advice.help) : null,
    button);
}

/** A button that makes a change, or says why it cannot. */
export function changer(label, change, writes, ask) {
  const makes = () => (ask ? ask(change) : confirmed(label, change));
  if (!writes.allowed) return h("button", { disabled: true, title: writes.why }, label);
  return h("button", { type: "button", onclick: makes }, label);
}

/** Changes that lose something need a confirmation. */
const CAREFUL = {
  discard: "The job is never run again.",
  discard_all: "The jobs are never run again.",
  cancel: "The job is removed. If it runs, its worker loses it.",
  remove: "The job is removed, with its error and its payload.",
  remove_schedule: "No more jobs are made of it, until the program registers it again.",
};

function confirmed(label, change) {
  if (change.action === "skip") return askReason(label, change);
  const warning = CAREFUL[change.action];
  return warning ? confirm(label, [h("p", null, warning)], () => make(change)) : make(change);
}

function askReason(label, change) {
  let reason = "";
  const field = h("label", null, "Reason, for the history ", h("input", { required: true, autofocus: true, oninput: (event) => { reason = event.target.value; } }));
  confirm(label, [h("p", null, "The watermark passes the job without a run. It is parked, so it can be run later."), field], () => make({ ...change, reason }));
}

/** Makes a change, and says what was done. */
export async function make(change) {
  try {
    say(await post(change), "good");
  } catch (error) {
    say(error.message, "stuck");
  }
  window.dispatchEvent(new Event("changed"));
}

let silence = 0;

/** Shows a sentence for a while. */
export function say(text, tone) {
  const toast = document.getElementById("toast");
  toast.className = tone;
  toast.textContent = text;
  toast.hidden = false;
  clearTimeout(silence);
  silence = setTimeout(() => { toast.hidden = true; }, tone === "stuck" ? 15000 : 6000);
}

/** Asks for a confirmation. */
export function confirm(title, body, then) {
  const dialog = document.getElementById("dialog");
  const close = () => dialog.close();
  const go = (event) => {
    event.preventDefault();
    close();
    then();
  };
  dialog.replaceChildren();
  draw(dialog, [h("form", { onsubmit: go },
    h("h2", { id: "dialog-title" }, title),
    body,
    h("p", { class: "buttons" }, h("button", { class: "primary" }, title), h("button", { type: "button", onclick: close }, "Leave it")))]);
  dialog.showModal();
}

/** Asks for a number, starting with the current one. */
export function askNumber(title, about, now, then) {
  let value = now;
  const field = h("label", null, `${about} `, h("input", { type: "number", min: 1, required: true, autofocus: true, value: now, oninput: (event) => { value = Number(event.target.value); } }));
  confirm(title, [field], () => then(value));
}

/** A figure with its name. */
export function figure(name, value, hint) {
  return h("div", { class: "figure", title: hint, key: name }, h("dt", null, name), h("dd", null, value));
}

const LETTERS = { d: "done", "+": "partly done", r: "running", f: "failed", p: "parked", g: "gap", ".": "not started" };

/** The window above the watermark, as a strip of cells. */
export function strip(strip) {
  const cells = strip.cells;
  const counts = {};
  for (const cell of cells) counts[cell] = (counts[cell] || 0) + 1;
  const each = strip.per_cell === 1 ? "indices" : `cells of ${number(strip.per_cell)} indices`;
  const said = Object.entries(LETTERS).filter(([letter]) => counts[letter]).map(([letter, word]) => `${number(counts[letter])} ${word}`).join(", ");
  const label = cells ? `The window, from ${strip.from} to ${Number(strip.end) - 1}: ${said} (${each})` : "The window is empty: everything is processed.";
  const paint = (canvas) => {
    canvas.setAttribute("aria-label", label);
    paintStrip(canvas, cells);
  };
  return h("figure", { class: "strip" },
    h("canvas", { role: "img", height: 28, ready: paint }),
    h("figcaption", null, label),
    h("ul", { class: "legend" }, Object.entries(LETTERS).map(([letter, word]) => h("li", { class: `cell-${word.replace(" ", "-")}` }, word, counts[letter] ? ` ${number(counts[letter])}` : ""))));
}

function paintStrip(canvas, cells) {
  const style = getComputedStyle(canvas);
  const width = Math.max(canvas.clientWidth, 100) * devicePixelRatio;
  if (canvas.width !== width) canvas.width = width;
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, width, canvas.height);
  const each = width / Math.max(cells.length, 1);
  [...cells].forEach((cell, at) => {
    context.fillStyle = style.getPropertyValue(`--cell-${LETTERS[cell].replace(" ", "-")}`);
    const gap = each > 3 * devicePixelRatio ? 1 : 0;
    context.fillRect(at * each, 0, Math.max(each - gap, 1), canvas.height);
  });
}

function clock(_plot, times) {
  return times.map((time) => new Date(time * 1000).toTimeString().slice(0, 8));
}

/** The plots of a name: one line each, with a text for screen readers. */
export class Plots {
  constructor(params, lines) {
    this.params = params;
    this.lines = lines;
    this.span = "minute";
    this.plots = new Map();
    this.data = null;
  }

  async read() {
    try {
      this.data = await get("plots", { ...this.params, span: this.span });
      this.paint();
    } catch {
      // The head of the page says that it is not connected.
    }
  }

  paint() {
    for (const [name, element] of this.plots) this.paintOne(name, element);
  }

  paintOne(name, element) {
    const values = this.data && this.data[name];
    if (!values || !element.isConnected) return;
    const known = values.filter((value) => value !== null).map(Number);
    const { title } = this.lines.find((line) => line.name === name);
    const last = known.length ? number(known[known.length - 1]) : "unknown";
    element.setAttribute("aria-label", `${title} over the last ${this.span}: now ${last}, at most ${known.length ? number(Math.max(...known)) : "unknown"}`);
    const data = [this.data.time.map(Number), values.map((value) => (value === null ? null : Number(value)))];
    const width = Math.max(element.clientWidth, 200);
    if (element.plot) {
      if (element.plot.width !== width) element.plot.setSize({ width, height: 140 });
      element.plot.setData(data);
      return;
    }
    const style = getComputedStyle(element);
    const [ink, grid, line] = ["--ink-soft", "--line", "--accent"].map((name) => style.getPropertyValue(name).trim());
    const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { show: false }, font: "11px system-ui", size: 46 };
    const options = {
      width, height: 140, legend: { show: false }, cursor: { y: false },
      axes: [{ ...axis, size: 24, space: 70, values: clock, incrs: [1, 5, 10, 15, 30, 60, 300, 600, 900, 1800] }, axis], scales: { y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      series: [{}, { label: title, stroke: line, width: 1.5, points: { show: false } }],
    };
    element.plot = new window.uPlot(options, data, element);
  }

  /** True unless this process does not know the values: then there is no plot. */
  isKnown(name) {
    const values = this.data && this.data[name];
    return !values || values.length < 3 || values.some((value) => value !== null);
  }

  /** The plots with the buttons for their span. */
  view() {
    const choose = (span) => () => {
      this.span = span;
      this.read();
      window.dispatchEvent(new Event("redraw"));
    };
    const button = (span, label) => h("button", { type: "button", "aria-pressed": String(this.span === span), onclick: choose(span) }, label);
    const ready = (name) => (element) => {
      this.plots.set(name, element);
      this.paintOne(name, element);
    };
    return h("section", { class: "plots", key: "plots", "aria-label": "Plots" },
      h("div", { class: "buttons" }, button("minute", "Last minute"), button("hour", "Last hour")),
      h("div", { class: "grid" }, this.lines.filter((line) => this.isKnown(line.name)).map((line) => h("figure", { key: line.name }, h("figcaption", null, line.title), h("div", { class: "plot", role: "img", "aria-label": line.title, ready: ready(line.name) })))));
  }
}

/** A table with a head, that scrolls by itself. On a narrow screen each row is a card, whose cells
 *  are labelled by their columns. (The roles keep it a table for screen readers.) */
export function table(caption, heads, rows) {
  const cell = (cell, at) => ({ ...cell, props: { role: "cell", "data-label": heads[at] || null, ...cell.props } });
  const row = (row) => ({ ...row, props: { role: "row", ...row.props }, children: row.children.map(cell) });
  return h("div", { class: "table", role: "region", "aria-label": caption, tabindex: 0 }, h("table", { role: "table" },
    h("caption", null, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads.map((head) => h("th", { scope: "col", role: "columnheader" }, head)))),
    h("tbody", { role: "rowgroup" }, rows.map(row))));
}
