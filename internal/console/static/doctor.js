// What the doctor has found.
import { html } from './vendor/preact-htm.js';
import { get } from './api.js';
import { name } from './format.js';
import { Asked, Sheet, useAsked } from './parts.js';

const states = { ok: 'good', note: '', warning: 'warn', unchecked: 'warn', problem: 'bad' };
const order = ['problem', 'unchecked', 'warning', 'note', 'ok'];

export function Grade({ grade }) {
  return html`<span class=${'tag ' + (states[grade] ?? 'warn')}>${grade}</span>`;
}

export const stateOf = (grade) => states[grade] ?? 'warn';

export const useDoctor = (every) => useAsked(async (signal) => (await get('/doctor', signal)).report, every);

export function Doctor() {
  const asked = useDoctor(60_000);
  return html`
    <p class="buttons"><button onClick=${asked.again}>Ask again</button></p>
    <${Asked} of=${asked}>${(told) => {
      const checks = [...told.checks].sort((a, b) => order.indexOf(a.grade) - order.indexOf(b.grade));
      const [fine, others] = [checks.filter((c) => c.grade === 'ok'), checks.filter((c) => c.grade !== 'ok')];
      return html`<p>The worst of ${checks.length} checks: <${Grade} grade=${told.grade} /></p>
        ${others.map((c) => html`<section key=${c.check} class="card">
          <h2><${Grade} grade=${c.grade} /> ${c.check}</h2>
          ${c.findings.map((f, i) => html`<div key=${i}><p><${Finding} f=${f} /></p>
            ${(f.remedy || []).map((line, n) => html`<p key=${n}><code>${name(line)}</code></p>`)}</div>`)}
        </section>`)}
        <h2>What is well</h2>
        <${Sheet} caption="Checks that found nothing" rows=${fine} id=${(c) => c.check} empty="Nothing." columns=${[
          ['Check', (c) => c.check], ['Says', (c) => c.findings.map((f, i) => html`<div key=${i}><${Finding} f=${f} /></div>`)],
        ]} />`;
    }}<//>`;
}

function Finding({ f }) {
  return html`${name(f.says)}${f.means ? html` <span class="note">${name(f.means)}</span>` : ''}`;
}
