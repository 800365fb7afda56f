// Reads of the server, which answers 304 where nothing is new: then the document is the very same object.

const known = new Map();
const KEPT = 200;

const address = (path, parameters) =>
  `/api/${path}?${new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined))}`;

// The last answer, if there is one: what a view shows while it reads anew.
export const remembered = (path, parameters = {}) => known.get(address(path, parameters))?.body;

export async function read(path, parameters = {}, signal = undefined) {
  const url = address(path, parameters);
  const last = known.get(url);
  const response = await fetch(url, { signal, headers: last ? { "If-None-Match": last.tag } : {} });
  if (response.status === 304) return last.body;
  if (response.status === 401) throw new Error("The server was started anew: open the link that ptctl ui printed.");
  const body = await response.json();
  if (!response.ok) throw Object.assign(new Error(body.message), { hint: body.hint, status: response.status });
  if (body.source) document.getElementById("source").textContent = body.source;
  known.delete(url);
  known.set(url, { tag: response.headers.get("ETag"), body });
  if (known.size > KEPT) known.delete(known.keys().next().value);
  return body;
}
