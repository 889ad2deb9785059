// What the person on call wants to know first.
import { html, useMemo, useState } from './vendor/preact-htm.js';
import { get, query } from './api.js';
import { Hosts } from './about.js';
import { Chart } from './chart.js';
import { stateOf, useDoctor } from './doctor.js';
import { count, span } from './format.js';
import { columns as eventColumns, useEvents } from './history.js';
import { Asked, Figure, Sheet, Trouble, useAsked, useNow } from './parts.js';
import { columns, useResources } from './resources.js';

const most = 20; // rows of those that matter most

// held says how many leases are held, as far as that is known.
function held(all, known) {
  if (all === null) return '…';
  return all.length && !known ? 'unknown' : count(all.filter((r) => r.held).length);
}

// notable puts first what somebody should look at.
function notable(all) {
  const weight = (r) => (r.former ? 4 : 0) + (r.mode === 'shadow' ? 2 : 0) + (r.held ? 1 : 0);
  return [...all].sort((a, b) => weight(b) - weight(a) || Date.parse(b.since || 0) - Date.parse(a.since || 0)).slice(0, most);
}

// slowest is the 99th percentile; null of nothing.
function slowest(all) {
  return all.length ? all.sort((a, b) => a - b)[Math.ceil(all.length * 0.99) - 1] : null;
}

// values are the points of a series, or of all of its name added up; null where there is none.
function values(told, name, scale = 1) {
  const all = (told?.series ?? []).filter((s) => s.name === name);
  if (!all.length) return null;
  return all[0].points.map((_, i) => {
    const known = all.map((s) => s.points[i]).filter((v) => v !== null);
    return known.length ? known.reduce((sum, v) => sum + v, 0) * scale : null;
  });
}

// last is the newest value of a series, or the mean of so many of its newest.
function last(told, name, points = 1) {
  const known = (values(told, name) ?? []).slice(-points).filter((v) => v !== null);
  return known.length ? known.reduce((sum, v) => sum + v, 0) / known.length : null;
}

// times are those of the points, in seconds since 1970.
function times(told) {
  const n = told.series[0]?.points.length ?? 0, end = Date.parse(told.end) / 1000;
  return Array.from({ length: n }, (_, i) => end - (n - 1 - i) * told.step_seconds);
}

const charts = [
  { label: 'Refused and handed over, per minute', lines: [{ of: 'refusals', scale: 60, label: 'refused', colour: '--line-2', fill: true }, { of: 'handoffs', scale: 60, label: 'handoffs', colour: '--line-1' }] },
  { label: 'Checks per second', lines: [{ of: 'checks', label: 'checks', colour: '--line-1', fill: true }] },
  { label: 'Sessions', lines: [{ of: 'sessions', label: 'sessions', colour: '--line-4', fill: true }] },
  { label: 'Logins per minute', lines: [{ of: 'logins', scale: 60, label: 'logins', colour: '--line-3' }] },
];

function Drawn({ chart, told }) {
  const lines = chart.lines.filter((l) => values(told, l.of));
  const data = useMemo(() => [times(told), ...lines.map((l) => values(told, l.of, l.scale))], [told]);
  if (!lines.length) return null;
  const summary = lines.map((l, i) => `${l.label} now ${count(Math.round(data[i + 1].at(-1) ?? 0))}`).join(', ');
  return html`<${Chart} label=${chart.label} summary=${summary} data=${data} lines=${lines} />`;
}

function Series() {
  const [range, set] = useState('1h');
  const asked = useAsked((signal) => get('/series' + query({ range }), signal), range === '1h' ? 5000 : 60_000, [range]);
  return html`<h2>The last ${range === '1h' ? 'hour' : 'day'} of this proxy</h2>
    <div class="bar"><label>Time<select value=${range} onChange=${(e) => set(e.target.value)}><option value="1h">1 hour</option><option value="24h">24 hours</option></select></label></div>
    <${Asked} of=${asked}>${(told) => (told.end ? html`<div class="charts">${charts.map((c) => html`<${Drawn} key=${c.label} chart=${c} told=${told} />`)}</div>`
      : html`<p class="none">The first figures come within ${told.step_seconds} s.</p>`)}<//>`;
}

export function Overview() {
  const now = useNow();
  const of = useResources();
  const doctor = useDoctor(60_000);
  const series = useAsked((signal) => get('/series' + query({ limit: 12 }), signal), 5000);
  const about = useAsked((signal) => get('/about', signal), 15_000);
  const { asked: history, events } = useEvents({ limit: 1000 });
  const all = of.all || [];
  const known = all.filter((r) => r.held !== undefined).length;
  const refusals = last(series.told, 'refusals', 12);
  const p99 = slowest(events.filter((e) => e.kind === 'handoff' && e.waited_seconds != null && now - Date.parse(e.at) < 3_600_000).map((e) => e.waited_seconds));
  return html`
    <dl class="figures">
      <${Figure} title="Doctor" state=${doctor.told ? stateOf(doctor.told.grade) : ''} note=${doctor.problem ? doctor.problem.message : html`<a href="#/doctor">all checks</a>`}>${doctor.told ? doctor.told.grade : '…'}<//>
      <${Figure} title="Held now" note=${`of ${count(all.length)} resources` + (known && known < all.length ? `; unknown: ${count(all.length - known)}` : '')}>${held(of.all, known)}<//>
      <${Figure} title="Refused in the last minute" state=${refusals ? 'bad' : ''} note="by this proxy">${refusals === null ? '–' : count(Math.round(refusals * 60))}<//>
      <${Figure} title="Handoff, p99" note="of the last hour">${p99 === null ? '–' : span(p99)}<//>
      <${Figure} title="Sessions" note="of this proxy">${last(series.told, 'sessions') === null ? '–' : count(last(series.told, 'sessions'))}<//>
    </dl>
    <h2>Who has what</h2>
    <${Trouble} problem=${of.problem} />
    ${of.all !== null && html`<${Sheet} caption="Resources to look at first" columns=${columns(of, now)} rows=${notable(all)} id=${(r) => r.resource}
      empty="No resource is known yet. The first grant makes one: wirefence lock NAME -- COMMAND." />
      ${all.length > most && html`<p><a href="#/resources">All ${count(all.length)} resources</a></p>`}`}
    <h2>What happened last</h2>
    <${Asked} of=${history}>${() => html`<${Sheet} caption="Last events" columns=${eventColumns} rows=${events.slice(0, 12)} id=${(e) => e.id} empty="Nothing is recorded yet." />
      <p><a href="#/history">The history</a></p>`}<//>
    <${Series} />
    <h2>PostgreSQL servers</h2>
    <${Asked} of=${about}>${(told) => html`<${Hosts} hosts=${told.upstream || []} />`}<//>`;
}
