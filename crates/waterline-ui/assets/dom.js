// A minimal view layer: elements are made of text, never of HTML, and the tree is patched only
// where it differs, so that the focus, a selection and an open menu stay.

/** Makes an element. A child that is no element is shown as text. */
export function h(tag, props, ...children) {
  return { tag, props: props || {}, children: children.flat(9).filter((child) => child !== null && child !== undefined && child !== false) };
}

const SVG = "http://www.w3.org/2000/svg";

function create(node, isSvg) {
  if (typeof node !== "object") return document.createTextNode(String(node));
  const svg = isSvg || node.tag === "svg";
  const element = svg ? document.createElementNS(SVG, node.tag) : document.createElement(node.tag);
  update(element, {}, node.props);
  for (const child of node.children) element.append(create(child, svg));
  element.drawn = node;
  if (node.props.ready) node.props.ready(element);
  return element;
}

function update(element, before, after) {
  for (const name of Object.keys(before)) {
    if (!(name in after)) set(element, name, null);
  }
  for (const [name, value] of Object.entries(after)) {
    if (before[name] !== value || typeof value === "function") set(element, name, value);
  }
}

function set(element, name, value) {
  if (name === "key" || name === "ready") return;
  if (name.startsWith("on")) {
    element[name] = value;
  } else if (name === "value") {
    // Keep what is being typed.
    if (document.activeElement !== element) element.value = value ?? "";
  } else if (name === "style") {
    for (const [key, text] of Object.entries(value || {})) element.style.setProperty(key, text);
  } else if (value === null || value === undefined || value === false) {
    element.removeAttribute(name);
  } else {
    element.setAttribute(name, value === true ? "" : String(value));
  }
}

function isSame(element, node) {
  if (typeof node !== "object") return element.nodeType === Node.TEXT_NODE;
  const drawn = element.drawn;
  return drawn && drawn.tag === node.tag && drawn.props.key === node.props.key;
}

function patch(element, node) {
  if (typeof node !== "object") {
    if (element.data !== String(node)) element.data = String(node);
    return;
  }
  update(element, element.drawn.props, node.props);
  element.drawn = node;
  // A canvas and a plot draw themselves.
  if (node.props.ready) node.props.ready(element);
  else draw(element, node.children);
}

/** Makes these the children of an element. */
export function draw(element, nodes) {
  const keyed = new Map();
  for (const child of element.childNodes) {
    const key = child.drawn && child.drawn.props.key;
    if (key !== undefined) keyed.set(key, child);
  }
  const isSvg = element.namespaceURI === SVG;
  nodes.forEach((node, at) => {
    const there = element.childNodes[at];
    const known = typeof node === "object" ? keyed.get(node.props.key) : undefined;
    const fits = known && isSame(known, node) ? known : there && isSame(there, node) ? there : null;
    if (!fits) {
      element.insertBefore(create(node, isSvg), there || null);
    } else {
      if (fits !== there) element.insertBefore(fits, there || null);
      patch(fits, node);
    }
  });
  while (element.childNodes.length > nodes.length) element.lastChild.remove();
}

/** The path of the page, with a trailing slash. */
export const base = document.body.dataset.base;

function address(view, params) {
  const query = new URLSearchParams(Object.entries(params || {}).filter(([, value]) => value !== undefined && value !== null && value !== ""));
  return `${base}api/${view}?${query}`;
}

async function answer(response) {
  if (response.status === 401) location.reload();
  const value = await response.json();
  if (!response.ok) throw new Error(value.error || response.statusText);
  return value;
}

/** Reads a view. */
export async function get(view, params) {
  return answer(await fetch(address(view, params), { credentials: "same-origin" }));
}

/** Makes a change, and returns the sentence that says what was done. */
export async function post(change) {
  const headers = { "Content-Type": "application/json", "X-Waterline-Page": "1" };
  const body = JSON.stringify(change);
  return (await answer(await fetch(`${base}api/change`, { method: "POST", headers, body, credentials: "same-origin" }))).said;
}

/** Follows a view until the returned function is called. */
export function follow(view, params, told, failed, lost) {
  const source = new EventSource(address(`live/${view}`, params));
  source.onmessage = (event) => told(JSON.parse(event.data));
  source.addEventListener("failure", (event) => failed(JSON.parse(event.data).error));
  let again = 0;
  source.onerror = () => {
    lost();
    // An answer that is no stream closes it for good. If a session is over, `get` reloads the page.
    if (source.readyState !== EventSource.CLOSED) return;
    const look = () => get(view, params).catch(() => {}).then(() => window.dispatchEvent(new Event("turned")));
    again = setTimeout(look, 3000);
  };
  return () => {
    clearTimeout(again);
    source.close();
  };
}

/** The address of a view of the page. */
export function link(view, params) {
  const query = new URLSearchParams(Object.entries(params || {}).filter(([, value]) => value !== undefined && value !== null && value !== ""));
  return `#/${view}?${query}`;
}
