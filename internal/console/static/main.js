// The frame: who looks, where in the console, and by which colours.
import { html, render, useEffect, useState } from './vendor/preact-htm.js';
import { get, setToken, takeToken, token } from './api.js';
import { name } from './format.js';
import { live, start, stop, watch } from './live.js';
import { Trouble } from './parts.js';
import { About } from './about.js';
import { Doctor } from './doctor.js';
import { Guards } from './guards.js';
import { History } from './history.js';
import { Overview } from './overview.js';
import { Resource } from './resource.js';
import { Resources } from './resources.js';

const pages = [
  ['', 'Overview', Overview], ['resources', 'Resources', Resources], ['history', 'History', History],
  ['guards', 'Guards', Guards], ['doctor', 'Doctor', Doctor], ['about', 'About', About],
];

// here returns the page that the address names: #/resources/orders is one of a resource.
function here() {
  const [path, search] = location.hash.replace(/^#\/?/, '').split('?');
  const [page, rest] = [path.split('/')[0], path.split('/').slice(1).join('/')];
  let resource = '';
  try { resource = decodeURIComponent(rest); } catch { /* no name */ }
  return { page, resource, search: new URLSearchParams(search || '') };
}

const words = { on: 'live', blind: 'no database', away: 'not connected', refused: 'not live', off: 'not live' };

function Theme() {
  const [theme, set] = useState(document.documentElement.dataset.theme || 'system');
  const choose = (event) => {
    const chosen = event.target.value;
    set(chosen);
    if (chosen === 'system') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = chosen;
    try {
      if (chosen === 'system') localStorage.removeItem('wirefence-theme');
      else localStorage.setItem('wirefence-theme', chosen);
    } catch { /* for this page only */ }
  };
  return html`<label class="theme"><span class="hidden">Colours</span><select value=${theme} onChange=${choose}>
    <option value="system">System</option><option value="light">Light</option><option value="dark">Dark</option>
  </select></label>`;
}

function Enter({ problem, entered }) {
  const [text, set] = useState('');
  const submit = (event) => {
    event.preventDefault();
    setToken(text);
    entered();
  };
  return html`<main class="enter"><h1>Wirefence</h1>
    <form onSubmit=${submit}>
      <label for="token">Token</label>
      <input id="token" type="password" autocomplete="off" required value=${text} onInput=${(e) => set(e.target.value)} autofocus />
      <p class="hint">A line of the file that <code>WIREFENCE_ADMIN_TOKEN_FILE</code> names has it last. This tab forgets it when it is closed.</p>
      <${Trouble} problem=${token() ? problem : null} />
      <p class="buttons"><button class="main">Enter</button></p>
    </form></main>`;
}

function App() {
  const [at, go] = useState(here());
  const [me, setMe] = useState({ told: null, problem: null, tries: 0 });
  const [state, setState] = useState(live.state);
  const [store, setStore] = useState(live.store);
  useEffect(() => {
    const moved = () => {
      takeToken();
      go(here());
      scrollTo(0, 0);
      document.getElementById('page')?.focus({ preventScroll: true });
    };
    addEventListener('hashchange', moved);
    const unwatch = watch((kind, said) => {
      if (kind === 'state') setState(said);
      if (kind === 'store') setStore(said);
    });
    return () => {
      removeEventListener('hashchange', moved);
      unwatch();
    };
  }, []);
  useEffect(() => {
    let timer;
    const over = new AbortController();
    const ask = async () => {
      try {
        const told = await get('/whoami', over.signal);
        setMe({ told, problem: null });
        start();
      } catch (problem) {
        if (over.signal.aborted) return;
        setMe((before) => ({ ...before, problem }));
        if (problem.status !== 401 && problem.status !== 403) timer = setTimeout(ask, 2000);
      }
    };
    ask();
    return () => {
      over.abort();
      clearTimeout(timer);
    };
  }, [me.tries]);
  const again = () => setMe((before) => ({ told: null, problem: null, tries: (before.tries || 0) + 1 }));
  if (!me.told) {
    if (me.problem && me.problem.status === 401) return html`<${Enter} problem=${me.problem} entered=${again} />`;
    return html`<main class="enter"><h1>Wirefence</h1>${me.problem ? html`<${Trouble} problem=${me.problem} />` : html`<p role="status">Asking the proxy …</p>`}</main>`;
  }
  const [, title, Page] = pages.find(([path]) => path === at.page) || pages[0];
  const one = at.page === 'resources' && at.resource;
  const leave = () => {
    stop();
    setToken('');
    again();
  };
  return html`
    <a class="skip" href="#page" onClick=${(e) => { e.preventDefault(); document.getElementById('page').focus(); }}>To the page</a>
    <header>
      <a class="brand" href="#/">Wirefence</a>
      <nav aria-label="Pages">${pages.map(([path, words]) => html`<a key=${path} href=${'#/' + path} aria-current=${path === at.page ? 'page' : undefined}>${words}</a>`)}</nav>
      <div class="me">
        <span class=${'state ' + state} role="status">${words[state]}</span>
        <span class="who" title="Whose token it is, and what it may do">${name(me.told.name || 'no token')} · ${me.told.scope}</span>
        <${Theme} />
        ${token() && html`<button class="plain" onClick=${leave}>Leave</button>`}
      </div>
    </header>
    <main id="page" tabindex="-1">
      ${store && html`<p class="trouble" role="alert">The lease store does not answer: ${name(store)}. Whether leases are held is unknown; none can be granted or renewed.</p>`}
      ${one ? html`<${Resource} key=${at.resource} resource=${at.resource} me=${me.told} />`
            : html`<h1>${title}</h1><${Page} key=${at.page} me=${me.told} search=${at.search} />`}
    </main>`;
}

takeToken();
const app = document.getElementById('app');
app.replaceChildren();
render(html`<${App} />`, app);
