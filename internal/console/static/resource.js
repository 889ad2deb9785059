// One resource: who has it, what happened to it, and what may be done about it.
import { html, useEffect, useMemo, useState } from './vendor/preact-htm.js';
import { get, of, patch, post } from './api.js';
import { Chart } from './chart.js';
import { ago, holder, moment, name, span, tokenOf } from './format.js';
import { columns, useEvents } from './history.js';
import { watch } from './live.js';
import { Ask, Asked, Figure, Sheet, useAsked, useNow } from './parts.js';
import { Held, leftOf } from './resources.js';

function shownSetting(value) {
  if (value === null) return 'none';
  return typeof value === 'object' ? JSON.stringify(value) : String(value);
}

function Changes({ changes }) {
  return html`<${Sheet} caption="Changes of the policy" empty="Nobody has changed it." rows=${[...changes].reverse()} columns=${[
    ['When', (c) => html`<time dateTime=${c.at}>${moment(c.at)}</time>`, 'nowrap'],
    ['Who', (c) => html`${name(c.by)}${c.application ? html` <span class="note">(${name(c.application)})</span>` : ''}`],
    ['What', (c) => Object.entries(c.settings).map(([setting, [before, after]]) =>
      html`<div key=${setting}>${setting}: ${name(shownSetting(before))} → <b>${name(shownSetting(after))}</b></div>`)],
    ['Why', (c) => name(c.reason)],
  ]} />`;
}

// steps turns grants into a line of tokens over time. Numbers above 2^53 are drawn as
// nearly as JavaScript can.
function steps(events) {
  const grants = events.filter((e) => (e.kind === 'handoff' || e.kind === 'revocation') && e.token).reverse();
  return [[...grants.map((e) => Date.parse(e.at) / 1000), Date.now() / 1000], [...grants.map((e) => Number(e.token)), Number(grants.at(-1)?.token)]];
}

function Acts({ r, me, again }) {
  const [asks, ask] = useState(null);
  if (me.scope !== 'operate') return !me.token_required && html`<p class="note">To revoke, or to change the policy, takes a token: name a file of tokens in WIREFENCE_ADMIN_TOKEN_FILE.</p>`;
  const shadow = r.mode === 'shadow';
  return html`<div class="acts">
      <button class="danger" onClick=${() => ask('revoke')}>Revoke …</button>
      <button onClick=${() => ask('mode')}>${shadow ? 'Enforce …' : 'Shadow …'}</button>
    </div>
    ${asks === 'revoke' && html`<${Ask} title=${'Revoke ' + name(r.resource)} label="Revoke" danger=${true} close=${() => ask(null)}
      text="The present holder is locked out at once: its open transactions are ended, and its writes refused from now on. Another can take the lease."
      done=${async (reason) => { await post(of(r.resource) + '/revoke', { reason }); again(); }} />`}
    ${asks === 'mode' && html`<${Ask} title=${(shadow ? 'Enforce ' : 'Shadow ') + name(r.resource)} label=${shadow ? 'Enforce' : 'Shadow'} danger=${!shadow} needs=${true} close=${() => ask(null)}
      text=${shadow ? 'What a check refuses is refused from now on.' : 'Nothing of this resource is refused any more: what would be is let pass, and recorded.'}
      done=${async (reason) => { await patch(of(r.resource), { mode: shadow ? 'enforce' : 'shadow', reason }); again(); }} />`}`;
}

export function Resource({ resource, me }) {
  const now = useNow();
  const asked = useAsked(async (signal) => ({ ...(await get(of(resource), signal)), readAt: Date.now() }), 5000, [resource]);
  const { asked: history, events } = useEvents({ resource, limit: 1000 });
  const [most, setMost] = useState(0);
  useEffect(() => watch((kind, e) => {
    if (kind === 'gap' || kind === 'store' || (kind === 'history' || kind === 'resource') && e.resource === resource) asked.again();
  }), [resource]);
  useEffect(() => { setMost((m) => Math.max(m, asked.told?.lease?.held_for_seconds || 0)); }, [asked.told]);
  const tokens = useMemo(() => steps(events), [events]);
  const refused = events.filter((e) => e.kind === 'refusal').reduce((n, e) => n + e.count, 0);
  return html`
    <p><a href="#/resources">Resources</a></p>
    <h1><bdi>${name(resource)}</bdi></h1>
    <${Asked} of=${asked}>${(r) => html`
      <${Acts} r=${r} me=${me} again=${asked.again} />
      <dl class="figures">
        <${Figure} title="Lease" note=${r.held && leftOf(r, r.readAt, now) !== null ? 'left, unless it is renewed' : ''}><${Held} resource=${r} readAt=${r.readAt} now=${now} most=${most} /><//>
        <${Figure} title=${r.held === false ? 'Last held by' : 'Holder'} note=${r.since ? 'granted ' + ago(r.since, now) : ''}><bdi>${holder(r.holder) || 'nobody'}</bdi><//>
        <${Figure} title="Token" note=${r.source ? 'of ' + r.source : ''}><span class="mono">${tokenOf(r)}</span><//>
        <${Figure} title="Writers" note="that a takeover would wait for">${r.writers}<//>
        <${Figure} title="Mode" state=${r.mode === 'shadow' ? 'warn' : ''} note=${r.former ? 'no token counts until another is granted' : ''}>${r.mode}<//>
        <${Figure} title="Refused" state=${refused ? 'bad' : ''} note="in the history below">${refused}<//>
      </dl>
      ${tokens[0].length > 2 && html`<${Chart} label="Token over time" near=${true} summary=${`${tokens[0].length - 1} grants, the last with token ${tokenOf(r)}`} data=${tokens} lines=${[{ label: 'token', colour: '--line-1', step: true }]} />`}
      <h2>History</h2>
      <${Asked} of=${history}>${() => html`<${Sheet} caption="History of the resource" columns=${columns.filter(([title]) => title !== 'Resource')} rows=${events.slice(0, 100)} id=${(e) => e.id} empty="Nothing is recorded of it." />`}<//>
      <h2>Policy</h2>
      <dl class="facts">
        <dt>advance</dt><dd>${r.advance}</dd><dt>reuse</dt><dd>${r.reuse}</dd>
        <dt>preempt_after</dt><dd>${r.preempt_after_seconds === null ? 'never' : span(r.preempt_after_seconds)}</dd>
        <dt>failover</dt><dd>${r.failover}</dd><dt>mode</dt><dd>${r.mode}</dd><dt>must name its source</dt><dd>${r.must_name_source ? 'yes' : 'no'}</dd>
      </dl>
      <h2>Changes of the policy</h2>
      <${Changes} changes=${r.changes || []} />`}<//>`;
}
