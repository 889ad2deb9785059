// Tables that guard themselves, and rows that judge.
import { html } from './vendor/preact-htm.js';
import { get } from './api.js';
import { moment, name } from './format.js';
import { Asked, Sheet, useAsked } from './parts.js';

const mode = ['Mode', (g) => html`<span class=${'tag ' + (g.mode === 'shadow' ? 'warn' : '')}>${g.mode}</span>`];
const declared = [
  ['Since', (g) => (g.since ? html`<time dateTime=${g.since}>${moment(g.since)}</time>` : ''), 'nowrap'],
  ['By', (g) => name(g.by)],
  ['State', (g) => g.fault && html`<span class="tag bad">fault</span> ${name(g.fault)}`],
];

export function Guards() {
  return html`<${Tables} /><${Classes} />`;
}

function Tables() {
  const asked = useAsked((signal) => get('/guards', signal), 15_000);
  return html`<${Asked} of=${asked}>${(told) => html`<${Sheet} caption="Guarded tables" rows=${told.guards} id=${(g) => g.table}
    empty="No table is guarded: writes that go around the proxy are not checked. See wirefence protect." columns=${[
      ['Table', (g) => html`<bdi>${name(g.table)}</bdi>`],
      ['Resource', (g) => html`<bdi>${name(g.resource)}</bdi>`],
      mode, ...declared,
    ]} />`}<//>`;
}

function Classes() {
  const asked = useAsked((signal) => get('/rows', signal), 15_000);
  return html`<${Asked} of=${asked}>${(told) => html`<${Sheet} caption="Classes of rows" rows=${told.rows} id=${(c) => c.class}
    empty="No rows are declared. See wirefence rows declare." columns=${[
      ['Class', (c) => c.class],
      ['Table', (c) => html`<bdi>${name(c.table)}</bdi>`],
      ['Key', (c) => html`<bdi>${name(c.key.join(', '))}</bdi>`],
      ['Claim', (c) => html`<bdi>${name(c.claim)}</bdi>`],
      ['While', (c) => html`<bdi>${name(c.while)}</bdi>`],
      mode, ...declared,
    ]} />`}<//>`;
}
