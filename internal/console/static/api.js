// What the pages ask of the proxy.

const key = 'wirefence-token';

// takeToken keeps a token that came behind the # of the address, where no server and no
// log sees it, and takes it out of the address.
export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1));
  if (!given.has('token')) return;
  setToken(given.get('token'));
  history.replaceState(null, '', location.pathname + '#/');
}

// A token is kept for the tab, and forgotten with it.
let kept = '';
export function setToken(token) {
  kept = token.trim();
  try {
    if (kept) sessionStorage.setItem(key, kept);
    else sessionStorage.removeItem(key);
  } catch { /* it is kept in memory */ }
}

export function token() {
  if (!kept) {
    try { kept = sessionStorage.getItem(key) || ''; } catch { /* there is none */ }
  }
  return kept;
}

// Problem is an answer that says why not, or no answer at all (status 0).
export class Problem extends Error {
  constructor(status, type, detail) {
    super(detail);
    this.status = status;
    this.type = type;
  }
}

// unreachable is said where there is no answer.
const unreachable = 'The proxy does not answer. This page tries again by itself.';

function headers(more) {
  const all = { ...more };
  if (token()) all.Authorization = 'Bearer ' + token();
  return all;
}

async function problemOf(answer) {
  let type = '', detail = '';
  try {
    const body = await answer.json();
    type = String(body.type || '').replace('urn:wirefence:problem:', '');
    detail = String(body.detail || body.title || '');
  } catch { /* it isn't the API that answers */ }
  return new Problem(answer.status, type, detail || `The proxy answers with status ${answer.status}.`);
}

async function send(method, path, body, signal) {
  const request = { method, signal, headers: headers(), cache: 'no-store', credentials: 'omit' };
  if (body !== undefined) {
    request.headers['Content-Type'] = 'application/json';
    request.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch('/v1' + path, request);
  } catch (e) {
    if (e.name === 'AbortError') throw e;
    throw new Problem(0, 'unreachable', unreachable);
  }
  if (!answer.ok) throw await problemOf(answer);
  return answer.status === 204 ? null : answer.json();
}

export const get = (path, signal) => send('GET', path, undefined, signal);
export const post = (path, body) => send('POST', path, body);
export const patch = (path, body) => send('PATCH', path, body);

// of is the path of a resource, whose name may hold anything.
export const of = (resource) => '/resources/' + encodeURIComponent(resource);

// query is the part of a path behind the question mark, of what is set.
export function query(parameters) {
  const set = Object.entries(parameters).filter(([, value]) => value !== '' && value != null);
  return set.length ? '?' + new URLSearchParams(set) : '';
}

// allResources reads all pages of the list, and hands each to more as it comes.
export async function allResources(more, signal) {
  for (let after = ''; ;) {
    const page = await get('/resources' + query({ limit: 1000, leases: true, after }), signal);
    more(page.resources);
    if (!page.next) return;
    after = page.next;
  }
}

// stream reads server-sent events until the signal ends it. EventSource can't send a
// token, so the format is read here (HTML standard, section 9.2.6).
export async function stream(path, last, each, signal) {
  const more = last ? { 'Last-Event-ID': last } : {};
  const answer = await fetch('/v1' + path, { headers: headers({ Accept: 'text/event-stream', ...more }), cache: 'no-store', credentials: 'omit', signal });
  if (!answer.ok) throw await problemOf(answer);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '', event = { name: '', id: '', data: [] };
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.search(/\r\n|\n|\r(?!$)/)) >= 0;) {
      const line = text.slice(0, end);
      text = text.slice(end + (text.startsWith('\r\n', end) ? 2 : 1));
      if (line === '') {
        if (event.data.length) each(event.name || 'message', event.data.join('\n'), event.id);
        event = { name: '', id: event.id, data: [] };
        continue;
      }
      const colon = line.indexOf(':');
      const field = colon < 0 ? line : line.slice(0, colon);
      const said = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
      if (field === 'event') event.name = said;
      else if (field === 'data') event.data.push(said);
      else if (field === 'id') event.id = said;
    }
  }
}
