// The list of resources.
import { html, useEffect, useRef, useState } from './vendor/preact-htm.js';
import { allResources, Problem } from './api.js';
import { count, holder, name, span, tokenOf } from './format.js';
import { watch } from './live.js';
import { Sheet, Trouble, When, useNow } from './parts.js';

// shown is how many rows are drawn before one asks for more.
const shown = 200;

// every is how often the list is read anew in milliseconds, apart from when something has
// happened. A long one is read less often: the store is asked for each lease.
const every = (n) => (n <= 200 ? 5_000 : n <= 2000 ? 15_000 : 60_000);

export const address = (resource) => '#/resources/' + encodeURIComponent(resource);

export function Link({ resource }) {
  return html`<a href=${address(resource)}><bdi>${name(resource)}</bdi></a>`;
}

// leftOf is how long a lease has left at a moment, in seconds; null where nobody tells.
export function leftOf(resource, readAt, now) {
  const left = resource.lease?.held_for_seconds;
  return left == null ? null : Math.max(0, left - (now - readAt) / 1000);
}

// Held tells whether somebody has the lease, and draws how much of it is left. most is the
// longest that was seen, since the store knows no time to live.
export function Held({ resource, readAt, now, most }) {
  if (resource.held === undefined) return html`<span class="note">unknown</span>`;
  if (!resource.held) return html`<span class="tag">free</span>`;
  const left = leftOf(resource, readAt, now);
  if (left === null) return html`<span class="tag good">held</span>`;
  return html`<span class="nowrap"><progress max=${Math.max(most, left)} value=${left} aria-label="Time left of the lease"></progress>${span(left)}</span>`;
}

export function marks(r) {
  return [r.mode === 'shadow' && ['shadow', 'warn'], r.former && ['needs a new grant', 'warn'], !r.holder && r.held === false && ['nobody', '']].filter(Boolean);
}

export function useResources() {
  const [state, set] = useState({ all: null, readAt: 0, problem: null });
  const most = useRef({});
  useEffect(() => {
    const over = new AbortController();
    let timer, due = false, soon = false, reading = false, many = 0;
    const read = async () => {
      clearTimeout(timer);
      reading = true;
      due = soon = false;
      const all = [];
      try {
        await allResources((page) => {
          all.push(...page);
          set((before) => (before.all === null || before.all.length < all.length ? { all: [...all], readAt: Date.now(), problem: null } : before));
        }, over.signal);
        for (const r of all) {
          const left = r.lease?.held_for_seconds;
          if (left != null) most.current[r.resource] = Math.max(most.current[r.resource] || 0, left);
        }
        set({ all, readAt: Date.now(), problem: null });
      } catch (problem) {
        if (over.signal.aborted) return;
        if (!(problem instanceof Problem)) throw problem;
        set((before) => ({ ...before, problem }));
      }
      reading = false;
      many = all.length;
      timer = setTimeout(read, due ? Math.min(3_000, every(many)) : every(many));
    };
    read();
    const unwatch = watch((kind) => {
      if (!['history', 'resource', 'gap', 'store'].includes(kind)) return;
      due = true;
      if (reading || soon) return; // or many events would put it off for ever
      soon = true;
      clearTimeout(timer);
      timer = setTimeout(read, many <= 200 ? 300 : 3_000);
    });
    return () => {
      over.abort();
      clearTimeout(timer);
      unwatch();
    };
  }, []);
  return { ...state, most: most.current };
}

export function columns(of, now) {
  return [
    ['Resource', (r) => html`<${Link} resource=${r.resource} />`],
    ['Lease', (r) => html`<${Held} resource=${r} readAt=${of.readAt} now=${now} most=${of.most[r.resource] || 0} />`],
    ['Holder', (r) => html`<bdi>${r.held === false && r.holder ? html`<span class="note">last: ${holder(r.holder)}</span>` : holder(r.holder)}</bdi>`],
    ['Token', (r) => html`<span class="mono">${tokenOf(r)}</span>`, 'number'],
    ['Granted', (r) => html`<${When} at=${r.since} now=${now} />`, 'nowrap'],
    ['Writers', (r) => r.writers, 'number'],
    ['State', (r) => marks(r).map(([text, state]) => html`<span key=${text} class=${'tag ' + state}>${text}</span> `)],
  ];
}

export function Resources() {
  const of = useResources();
  const now = useNow();
  const [filter, setFilter] = useState('');
  const [which, setWhich] = useState('all');
  const [most, setMost] = useState(shown);
  if (of.all === null) return of.problem ? html`<${Trouble} problem=${of.problem} />` : html`<p role="status" class="wait">Asking the proxy …</p>`;
  const wanted = filter.trim().toLowerCase();
  const fits = of.all.filter((r) => (!wanted || r.resource.toLowerCase().includes(wanted) || (r.holder || '').toLowerCase().includes(wanted)) &&
    (which === 'all' || which === 'held' && r.held || which === 'free' && r.held === false || which === 'shadow' && r.mode === 'shadow' || which === 'former' && r.former));
  return html`
    <${Trouble} problem=${of.problem} />
    <div class="bar">
      <label>Name or holder<input type="search" value=${filter} onInput=${(e) => { setFilter(e.target.value); setMost(shown); }} /></label>
      <label>Which<select value=${which} onChange=${(e) => { setWhich(e.target.value); setMost(shown); }}>
        <option value="all">all</option><option value="held">held now</option><option value="free">free</option><option value="shadow">in shadow mode</option><option value="former">in need of a new grant</option>
      </select></label>
      <span class="note" role="status">${count(fits.length)} of ${count(of.all.length)}</span>
    </div>
    <${Sheet} caption="Resources" columns=${columns(of, now)} rows=${fits.slice(0, most)} id=${(r) => r.resource}
      empty=${of.all.length ? 'None fits.' : 'No resource is known yet. The first grant makes one: wirefence lock NAME -- COMMAND.'} />
    ${fits.length > most && html`<p class="buttons"><button onClick=${() => setMost(most + shown)}>Show ${count(Math.min(shown, fits.length - most))} more</button></p>`}`;
}
