// What several pages show.
import { html, useEffect, useRef, useState } from './vendor/preact-htm.js';
import { Problem } from './api.js';
import { ago, moment } from './format.js';

// useNow returns the time, and has the page drawn anew each second.
export function useNow() {
  const [now, set] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => set(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

// useAsked asks, and asks again each so many milliseconds and whenever what it hangs on
// changes. What was told last stays while an answer is out.
export function useAsked(ask, every, on = []) {
  const [state, set] = useState({ told: null, problem: null });
  const again = useRef(() => {});
  useEffect(() => {
    const over = new AbortController();
    let timer;
    const run = async () => {
      clearTimeout(timer);
      try {
        const told = await ask(over.signal);
        if (!over.signal.aborted) set({ told, problem: null });
      } catch (problem) {
        if (over.signal.aborted) return;
        if (!(problem instanceof Problem)) throw problem;
        set((before) => ({ told: before.told, problem }));
      }
      if (every && !over.signal.aborted) timer = setTimeout(run, every);
    };
    again.current = run;
    set((before) => ({ told: before.told, problem: null }));
    run();
    return () => {
      over.abort();
      clearTimeout(timer);
    };
  }, on);
  return { ...state, again: () => again.current() };
}

// Trouble tells why there is nothing, or nothing new.
export function Trouble({ problem }) {
  if (!problem) return null;
  return html`<p class="trouble" role="alert">${problem.message}</p>`;
}

// Asked shows what an answer has, or that it is on its way, or why there is none.
export function Asked({ of, children }) {
  if (of.told === null && of.problem === null) return html`<p class="wait" role="status">Asking the proxy …</p>`;
  return html`<${Trouble} problem=${of.problem} />${of.told !== null && children(of.told)}`;
}

export function When({ at, now }) {
  if (!at) return null;
  return html`<time dateTime=${at} title=${moment(at)}>${ago(at, now)}</time>`;
}

export const kinds = {
  handoff: 'handoff', revocation: 'revoked', ended: 'ended', refusal: 'refused', shadow: 'let pass', bypass: 'bypassed', dropped: 'not recorded',
};

const gravity = { ended: 'warn', refusal: 'bad', shadow: 'warn', bypass: 'warn', dropped: 'warn' };

export function Kind({ kind }) {
  return html`<span class=${'tag ' + (gravity[kind] || '')}>${kinds[kind] || kind}</span>`;
}

// Sheet is a table that a phone shows as cards. columns are [title, cell, class].
export function Sheet({ columns, rows, id, caption, empty }) {
  if (!rows.length) return html`<p class="none">${empty}</p>`;
  return html`<div class="sheet" tabindex="0" role="region" aria-label=${caption}><table>
    <caption class="hidden">${caption}</caption>
    <thead><tr>${columns.map(([title, , kind]) => html`<th key=${title} scope="col" class=${kind}>${title}</th>`)}</tr></thead>
    <tbody>${rows.map((row, i) => html`<tr key=${id ? id(row) : i}>${columns.map(([title, cell, kind]) =>
      html`<td key=${title} data-title=${title} class=${kind}><div>${cell(row)}</div></td>`)}</tr>`)}</tbody>
  </table></div>`;
}

// Ask is a question that the person answers with a reason before something is done.
export function Ask({ title, text, label, danger, needs, done, close }) {
  const dialog = useRef(null);
  const [reason, setReason] = useState('');
  const [state, set] = useState({ busy: false, problem: null });
  useEffect(() => { dialog.current.showModal(); }, []);
  const submit = async (event) => {
    event.preventDefault();
    set({ busy: true, problem: null });
    try {
      await done(reason.trim());
      close();
    } catch (problem) {
      set({ busy: false, problem });
    }
  };
  return html`<dialog ref=${dialog} onClose=${close} aria-labelledby="ask-title">
    <form onSubmit=${submit}>
      <h2 id="ask-title">${title}</h2>
      <p>${text}</p>
      <label for="ask-reason">Reason</label>
      <textarea id="ask-reason" rows="2" maxlength="1000" required=${needs} value=${reason} onInput=${(e) => setReason(e.target.value)} autofocus></textarea>
      <p class="hint">It is kept in the history, with your token's name.</p>
      <${Trouble} problem=${state.problem} />
      <p class="buttons">
        <button type="button" onClick=${() => dialog.current.close()}>Cancel</button>
        <button class=${danger ? 'danger' : 'main'} disabled=${state.busy || (needs && !reason.trim())}>${label}</button>
      </p>
    </form>
  </dialog>`;
}

// Figure is one number with what it is.
export function Figure({ title, children, state, note }) {
  return html`<div class=${'figure ' + (state || '')}><dt>${title}</dt><dd>${children}</dd>${note && html`<dd class="note">${note}</dd>`}</div>`;
}
