// How times, names and numbers are shown.

// span is a number of seconds, in the two units that say the most.
export function span(seconds) {
  if (seconds == null || Number.isNaN(seconds)) return '';
  const s = Math.max(0, seconds);
  if (s < 1) return Math.round(s * 1000) + ' ms';
  if (s < 10) return s.toFixed(1) + ' s';
  if (s < 60) return Math.floor(s) + ' s';
  const units = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
  const at = units.findIndex(([size]) => s >= size);
  const [size, unit] = units[at];
  const whole = Math.floor(s / size), rest = Math.floor((s - whole * size) / units[at + 1][0]);
  return `${whole} ${unit}` + (rest && whole < 10 ? ` ${rest} ${units[at + 1][1]}` : '');
}

export function ago(time, now) {
  if (!time) return '';
  const seconds = (now - Date.parse(time)) / 1000;
  return seconds < 1 ? 'just now' : span(seconds) + ' ago';
}

const clock = new Intl.DateTimeFormat('sv-SE', { dateStyle: 'short', timeStyle: 'medium' });

// moment is a time by the browser's clock and zone, as 2026-01-02 15:04:05.
export function moment(time) {
  const at = new Date(time);
  return Number.isNaN(at.getTime()) ? String(time) : clock.format(at);
}

// name makes visible what a name hides: control characters, and those that change the
// direction of what follows.
export function name(text) {
  return String(text ?? '').replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    (c) => '\\u' + c.charCodeAt(0).toString(16).padStart(4, '0'));
}

// holder is a holder's name without the id of its grant.
export function holder(text) {
  return name(String(text ?? '').replace(/\/[A-Z2-7]{26}$/, ''));
}

const numbers = new Intl.NumberFormat('en');
export const count = (n) => (n == null ? '' : numbers.format(n));

// tokenOf is a token as text: a number above 2^53 has lost digits in JavaScript.
export const tokenOf = (of, field = 'token') => of[field + '_text'] ?? (of[field] == null ? '' : String(of[field]));
