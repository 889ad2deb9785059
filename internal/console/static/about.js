// Which proxy this is, and how it is set.
import { html } from './vendor/preact-htm.js';
import { get } from './api.js';
import { holder, moment, name, tokenOf } from './format.js';
import { Asked, Sheet, useAsked } from './parts.js';
import { Link } from './resources.js';

export function Hosts({ hosts }) {
  return html`<${Sheet} caption="PostgreSQL servers" rows=${hosts} id=${(h) => h.host} empty="None is known." columns=${[
    ['Host', (h) => html`<bdi>${name(h.host)}</bdi>`],
    ['Role', (h) => html`<span class=${'tag ' + (h.behind || h.error ? 'bad' : '')}>${h.behind ? 'left behind' : h.role}</span>`],
    ['Timeline', (h) => h.timeline || '', 'number'],
    ['Trouble', (h) => name(h.error)],
  ]} />`;
}

const time = (at) => (at ? html`<time dateTime=${at}>${moment(at)}</time>` : '');

// adopted are the columns of the locks that leases follow.
const adopted = [
  ['Lock', (l) => html`<bdi>${name(l.from)}</bdi>`],
  ['Resource', (l) => html`<${Link} resource=${l.resource} />`],
  ['Token', (l) => tokenOf(l), 'number'],
  ['Lease', (l) => html`<span class=${'tag ' + (l.held ? 'good' : '')}>${l.held ? 'held' : 'not held'}</span> ${name(l.ended)}`],
  ['Holder', (l) => html`<bdi>${holder(l.holder)}</bdi>`],
  ['Since', (l) => time(l.since), 'nowrap'],
  ['Until', (l) => time(l.until), 'nowrap'],
];

export function About() {
  const asked = useAsked((signal) => get('/about', signal), 15_000);
  return html`<${Asked} of=${asked}>${(told) => html`
    <dl class="facts">
      <dt>version</dt><dd>${name(told.version)}</dd><dt>mode</dt><dd>${told.mode}</dd>
      <dt>writes without a fence</dt><dd>${told.unfenced_writes}</dd><dt>process</dt><dd>${name(told.process)}</dd>
      <dt>running since</dt><dd>${moment(told.started_at)}</dd><dt>schema</dt><dd>${told.schema}</dd>
      ${told.lease && html`<dt>own lease</dt><dd>${name(told.lease.resource)}: ${told.lease.held ? 'held' : 'not held'}</dd>`}
    </dl>
    ${told.adopted && html`<h2>Locks of the application</h2><${Sheet} caption="Locks of the application" rows=${told.adopted} id=${(l) => l.from} empty="" columns=${adopted} />`}
    <h2>Servers</h2><${Hosts} hosts=${told.upstream || []} />
    <h2>Settings</h2>
    <${Sheet} caption="Settings" rows=${Object.entries(told.settings)} id=${([key]) => key} empty="" columns=${[['Variable', ([key]) => html`<code>${key}</code>`], ['Value', ([, value]) => name(value)]]} />
    <h2>This console</h2>
    <p>It draws with <a href="vendor/README.txt">Preact, htm and uPlot</a>, and asks no other host than this proxy.</p>`}<//>`;
}
