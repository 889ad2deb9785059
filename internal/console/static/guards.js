// Tables that guard themselves.
import { html } from './vendor/preact-htm.js';
import { get } from './api.js';
import { moment, name } from './format.js';
import { Asked, Sheet, useAsked } from './parts.js';

export function Guards() {
  const asked = useAsked((signal) => get('/guards', signal), 15_000);
  return html`<${Asked} of=${asked}>${(told) => html`<${Sheet} caption="Guarded tables" rows=${told.guards} id=${(g) => g.table}
    empty="No table is guarded: writes that go around the proxy are not checked. See wirefence protect." columns=${[
      ['Table', (g) => html`<bdi>${name(g.table)}</bdi>`],
      ['Resource', (g) => html`<bdi>${name(g.resource)}</bdi>`],
      ['Mode', (g) => html`<span class=${'tag ' + (g.mode === 'shadow' ? 'warn' : '')}>${g.mode}</span>`],
      ['Since', (g) => (g.since ? html`<time dateTime=${g.since}>${moment(g.since)}</time>` : ''), 'nowrap'],
      ['By', (g) => name(g.by)],
      ['State', (g) => g.fault && html`<span class="tag bad">fault</span> ${name(g.fault)}`],
    ]} />`}<//>`;
}
