// What the database has recorded, and what happens now.
import { html, useEffect, useMemo, useState } from './vendor/preact-htm.js';
import { get, query } from './api.js';
import { count, holder, moment, name, span, tokenOf } from './format.js';
import { live, watch } from './live.js';
import { Asked, Kind, Sheet, kinds, useAsked } from './parts.js';
import { Link } from './resources.js';

const shown = 200;

// says tells in a line what an event was.
export function says(e) {
  const who = e.holder ? html`<bdi>${holder(e.holder)}</bdi>` : 'nobody';
  const session = e.login && html` <span class="note">by ${name(e.login)}${e.application ? ` (${name(e.application)})` : ''}${e.address ? ` from ${name(e.address)}` : ''}</span>`;
  const told = e.reason === 'granted' || e.kind === 'refusal' && e.token; // by the rest
  const why = e.reason && !told && html` <span class="note">“${name(e.reason)}”</span>`;
  const trace = e.traceparent && html` <span class="note mono">trace ${name(e.traceparent.split('-')[1])}</span>`;
  const waited = e.waited_seconds >= 0.01 && html` <span class="note">after ${span(e.waited_seconds)}</span>`;
  switch (e.kind) {
    case 'handoff':
      return html`${who} took over${e.former_holder ? html` from <bdi>${holder(e.former_holder)}</bdi>` : ''} with token ${tokenOf(e)}${waited}${why}`;
    case 'revocation':
      return html`locked out${e.former_holder ? html` <bdi>${holder(e.former_holder)}</bdi>` : ' whoever had it'}; token ${tokenOf(e)}${waited}${session}${why}`;
    case 'ended':
      return html`a transaction was ended for a takeover${session}${why}`;
    case 'refusal':
    case 'shadow':
      return html`<span class="mono">${e.state || ''}</span> ${e.token ? html`token ${tokenOf(e)}${e.current_token ? ` where ${tokenOf(e, 'current_token')} counts` : ''}` : ''}${e.relation ? html` on ${name(e.relation)}` : ''}${session}${why}${trace}`;
    case 'dropped':
      return html`${count(e.count)} refusals could not be recorded by ${name(e.proxy)}`;
  }
  return html`${e.relation ? name(e.relation) : ''}${session}${why}`;
}

export const columns = [
  ['When', (e) => html`<time dateTime=${e.at}>${moment(e.last_at || e.at)}</time>`, 'nowrap'],
  ['What', (e) => html`<${Kind} kind=${e.kind} />`],
  ['Resource', (e) => (e.resource ? html`<${Link} resource=${e.resource} />` : '')],
  ['Details', (e) => says(e)],
  ['Times', (e) => (e.count > 1 ? count(e.count) : ''), 'number'],
];

// useEvents returns recorded events, the newest first, with those that happen meanwhile.
export function useEvents({ resource = '', kind = '', since = '', limit = 1000 }) {
  const asked = useAsked((signal) => get('/history' + query({ resource, kind, since, limit }), signal), 60_000, [resource, kind, since, limit]);
  const [fresh, setFresh] = useState(0);
  useEffect(() => watch((what) => {
    if (what === 'history') setFresh((n) => n + 1);
    if (what === 'gap') asked.again();
  }), []);
  const events = useMemo(() => {
    const known = new Map();
    const fits = (e) => (!resource || e.resource === resource) && (!kind || kind.split(',').includes(e.kind)) && (!since || Date.parse(e.at) >= Date.parse(since));
    for (const e of [...(asked.told?.events ?? []), ...live.recent.filter(fits)]) {
      const before = known.get(e.id);
      if (!before || e.count >= before.count) known.set(e.id, e);
    }
    return [...known.values()].sort((a, b) => Date.parse(b.last_at || b.at) - Date.parse(a.last_at || a.at));
  }, [asked.told, fresh, resource, kind, since]);
  return { asked, events };
}

const spans = { hour: 3600, day: 86400, week: 604800 };

export function History({ search }) {
  const [kind, setKind] = useState(search.get('kind') || '');
  const [reach, setReach] = useState('all');
  const [filter, setFilter] = useState('');
  const [most, setMost] = useState(shown);
  const since = useMemo(() => (spans[reach] ? new Date(Date.now() - spans[reach] * 1000).toISOString() : ''), [reach]);
  const { asked, events } = useEvents({ kind, since });
  const wanted = filter.trim().toLowerCase();
  const fits = wanted ? events.filter((e) => JSON.stringify([e.resource, e.holder, e.former_holder, e.login, e.application, e.reason, e.state, e.relation, e.traceparent]).toLowerCase().includes(wanted)) : events;
  return html`
    <div class="bar">
      <label>What<select value=${kind} onChange=${(e) => setKind(e.target.value)}>
        <option value="">everything</option><option value="refusal,shadow">refused, or let pass in shadow mode</option>
        ${Object.entries(kinds).map(([value, text]) => html`<option key=${value} value=${value}>${text}</option>`)}
      </select></label>
      <label>Since<select value=${reach} onChange=${(e) => setReach(e.target.value)}>
        <option value="all">ever</option><option value="hour">an hour ago</option><option value="day">a day ago</option><option value="week">a week ago</option>
      </select></label>
      <label>Text<input type="search" value=${filter} onInput=${(e) => setFilter(e.target.value)} /></label>
      <span class="note">of the newest 1,000; <code>wirefence history</code> has all</span>
    </div>
    <${Asked} of=${asked}>${(told) => html`
      ${told.unrecorded_refusals > 0 && html`<p class="note">${count(told.unrecorded_refusals)} refusals that the database raised were not seen by a proxy: writes around it, or through one without <code>WIREFENCE_DATABASE_URL</code>.</p>`}
      <${Sheet} caption="History" columns=${columns} rows=${fits.slice(0, most)} id=${(e) => e.id} empty="Nothing is recorded that fits." />
      ${fits.length > most && html`<p class="buttons"><button onClick=${() => setMost(most + shown)}>Show ${count(Math.min(shown, fits.length - most))} more</button></p>`}`}<//>`;
}
