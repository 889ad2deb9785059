// Charts by uPlot, in the colours of the theme.
import { html, useEffect, useRef } from './vendor/preact-htm.js';

function colour(of, name) {
  return getComputedStyle(of).getPropertyValue(name).trim();
}

// clock shows the times of an axis, with seconds where they matter.
const formats = [new Intl.DateTimeFormat('sv-SE', { hour: '2-digit', minute: '2-digit' }), new Intl.DateTimeFormat('sv-SE', { hour: '2-digit', minute: '2-digit', second: '2-digit' })];
const clock = (u, ticks) => ticks.map((t) => formats[ticks[1] - ticks[0] < 60 ? 1 : 0].format(new Date(t * 1000)));

// Chart draws lines over time. data are arrays of equal length: seconds since 1970, and a
// row for each of the lines; lines are {label, colour, step}. A chart can't be read aloud,
// so label says what it shows, and summary what there is to see. With near the axis need not
// begin at 0.
export function Chart({ label, summary, lines, data, near, height = 160 }) {
  const place = useRef(null);
  const plot = useRef(null);
  const shape = JSON.stringify(lines);
  useEffect(() => {
    const at = place.current;
    const draw = () => {
      plot.current?.destroy();
      const axis = { stroke: colour(at, '--faint'), grid: { stroke: colour(at, '--rule'), width: 1 }, ticks: { show: false }, font: '12px system-ui' };
      plot.current = new uPlot({
        width: at.clientWidth, height, cursor: { drag: { x: true, y: false } }, legend: { live: true },
        scales: { y: { range: (u, low, high) => (near ? [(low ?? 0) - 1, (high ?? 0) + 1] : [Math.min(0, low ?? 0), Math.max(1, (high ?? 0) * 1.1)]) } },
        axes: [{ ...axis, values: clock, space: 90 }, { ...axis, size: 56 }],
        series: [{ value: '{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}' }, ...lines.map((line) => ({
          label: line.label, stroke: colour(at, line.colour), width: 1.5, points: { show: false }, spanGaps: false,
          paths: line.step ? uPlot.paths.stepped({ align: 1 }) : undefined,
          fill: line.fill ? colour(at, line.colour) + '22' : undefined,
        }))],
      }, plot.current?.data ?? data, at);
    };
    draw();
    const size = new ResizeObserver(() => plot.current?.setSize({ width: at.clientWidth, height }));
    size.observe(at);
    const theme = new MutationObserver(draw);
    theme.observe(document.documentElement, { attributes: true, attributeFilter: ['data-theme'] });
    const system = matchMedia('(prefers-color-scheme: dark)');
    system.addEventListener('change', draw);
    return () => {
      size.disconnect();
      theme.disconnect();
      system.removeEventListener('change', draw);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape, height]);
  useEffect(() => { plot.current?.setData(data); }, [data]);
  return html`<figure class="chart"><figcaption>${label}</figcaption><div ref=${place} role="img" aria-label=${label + (summary ? ': ' + summary : '')}></div></figure>`;
}
