// What happens, as it happens: one stream for the whole page.
import { Problem, query, stream } from './api.js';

const watchers = new Set();
// store is why the lease store does not answer, or ''.
export const live = { state: 'off', store: '', recent: [] };

// maxRecent is how many events the page keeps.
const maxRecent = 500;

// watch calls back for each event, and when the stream's state changes. It returns what
// ends that.
export function watch(each) {
  watchers.add(each);
  return () => watchers.delete(each);
}

function tell(kind, data) {
  for (const each of watchers) each(kind, data);
}

function enter(state) {
  if (live.state === state) return;
  live.state = state;
  tell('state', state);
}

function enterStore(store) {
  const changed = !live.store !== !store;
  live.store = store;
  if (changed) tell('store', store);
}

let running = null;

// start opens the stream, and opens it anew when it ends, with longer and longer pauses.
export function start() {
  stop();
  const over = running = new AbortController();
  run(over.signal);
}

export function stop() {
  running?.abort();
  running = null;
  enter('off');
}

// silence is how long the stream may bring nothing, not even a heartbeat.
const silence = 45_000;

async function run(signal) {
  let last = '', pause = 500;
  while (!signal.aborted) {
    const one = new AbortController();
    signal.addEventListener('abort', () => one.abort(), { once: true });
    let timer;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => one.abort(), silence);
    };
    try {
      heard();
      await stream('/events' + query({}), last, (kind, data, id) => {
        heard();
        pause = 500;
        if (id) last = id;
        take(kind, data);
      }, one.signal);
    } catch (e) {
      if (signal.aborted) return;
      if (e instanceof Problem && (e.status === 401 || e.status === 403)) {
        enter('refused');
        return;
      }
    } finally {
      clearTimeout(timer);
    }
    enter('away');
    await new Promise((done) => { setTimeout(done, pause + Math.random() * pause); });
    pause = Math.min(pause * 2, 15_000);
  }
}

function take(kind, data) {
  let told;
  try {
    told = JSON.parse(data);
  } catch {
    return; // the next one will be whole
  }
  enter(kind === 'heartbeat' && told.database !== 'ok' ? 'blind' : 'on');
  if (kind === 'heartbeat') enterStore(told.store === 'unavailable' ? told.store_detail : '');
  if (kind === 'history') {
    live.recent = live.recent.filter((e) => e.id !== told.id);
    live.recent.unshift(told);
    live.recent.length = Math.min(live.recent.length, maxRecent);
  }
  tell(kind, told);
}
