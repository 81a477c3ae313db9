// The panel of one cell: its estimate, its day, and how its speeds spread. Pictures are SVG, words are text nodes.

import {
  briefOf, CDF_ERROR, clockOf, counted, dayOf, idOf, numberOf, placeOf, rangeOf, sentencesOf, wallClock,
} from './words.js';

const WIDTH = 320;
const [LEFT, RIGHT] = [34, 8]; // margins of a plot

function made(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null));
  return node;
}

export const element = (tag, attributes = {}, ...children) => made(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) =>
  made(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);

const ABOUT = 'A release is what the buses of a cell told in a slot, with noise that hides each of them. An estimate joins it '
  + 'with earlier slots and neighbouring cells: it has the colour on the map. Its likely range leaves room for an incident '
  + 'that a release shows only in part; that of a release alone does not, and may be the narrower.';

/** What the panel says while no cell is chosen. */
export function emptyPanel() {
  return [
    element('h2', {}, 'Choose a cell'),
    element('p', {}, 'Choose one on the map, or in the table with the keyboard. Its estimate, its day and the spread of '
      + 'its speeds are shown here.'),
    element('p', { class: 'muted' }, ABOUT),
  ];
}

/** The cell in its slot. Its day comes later, in the place of an empty plot. */
export function panelOf(cell, close) {
  const { estimate } = cell;
  const button = element('button', { type: 'button', class: 'close', 'aria-label': 'Close the panel' }, '×');
  button.addEventListener('click', close);
  return [
    ...headOf(cell.id), button,
    cell.withdrawn === null ? null
      : element('p', { class: 'alert' }, `Withdrawn: ${cell.withdrawn}. Do not use what was released here.`),
    cell.isNews ? element('p', { class: 'alert' }, 'Not as usual. ', newsWords(estimate)) : null,
    element('p', { class: `figure ${cell.kind}` }, numberOf(cell), element('small', {}, ' km/h')),
    element('p', { class: 'sentences' }, sentencesOf(cell).join(' ')),
    cell.value === null ? null : barsOf(cell),
    element('h3', {}, dayOf(cell.hat.slot_start)),
    dayPlot(cell, []),
    ...(estimate ? spreadOf(estimate) : []),
    element('p', { class: 'muted' }, `In 95 of 100 such cells the true mean lies in the bar, if the model is right. ${ABOUT}`),
  ].filter((part) => part !== null);
}

/** The place by its name, where it has one, and by its id. */
function headOf(id) {
  const [place, written] = [placeOf(id), element('span', { class: 'id', title: id }, idOf(id))];
  if (!place) return [element('h2', {}, 'Cell ', written)];
  const { name, routes } = place;
  const served = routes.length ? `${routes.length > 1 ? 'Busiest routes' : 'Route'} ${routes.join(' and ')} · ` : '';
  return [element('h2', {}, name), element('p', { class: 'muted where' }, `${served}${/^[0-9a-f]{15}(-[nesw]+)?$/.test(id) ? 'H3 cell' : 'zone'} `, written)];
}

const newsWords = ({ news }) => `It is ${Math.round(100 * news)} % likely that something happened here.`;

/** A scale from km/h to x. `top` is its end. */
function scaleTo(top, left, right) {
  const x = (kmh) => left + (Math.min(kmh, top) / top) * (WIDTH - left - right);
  return Object.assign(x, { top });
}

const roundTop = (highest) => Math.max(30, 10 * Math.ceil(highest / 10));
const ticksTo = (top) => {
  const step = [10, 20, 50, 100, 500].find((each) => top / each <= 7) ?? 1000;
  return Array.from({ length: Math.floor(top / step) + 1 }, (_, i) => i * step);
};
const line = (x1, y1, x2, y2, name) => svg('line', { x1, y1, x2, y2, class: name });
const text = (x, y, words, name = '') => svg('text', { x, y, class: name }, words);
const plot = (height, label, ...parts) =>
  svg('svg', { viewBox: `0 0 ${WIDTH} ${height}`, role: 'img', 'aria-label': label, class: 'plot' }, ...parts);

function axisBelow(x, y) {
  return svg('g', {}, line(x(0), y, x(x.top), y, 'base'), text(x(0) - 8, y + 14, 'km/h', 'last'),
    ...ticksTo(x.top).map((kmh) => text(x(kmh), y + 14, kmh, 'middle')));
}

/** The estimate, the release alone, and the guess by traffic alone, on one scale. */
function barsOf({ estimate, mean, kind, step, guess }) {
  const rows = [
    estimate ? ['estimate', estimate, `bar ${kind} step-${step}`, 12] : null,
    mean ? ['release alone', mean, 'bar alone', 5] : null,
  ].filter((row) => row);
  const highest = Math.max(guess ?? 0, ...rows.map(([, shown]) => shown.interval95_kmh[1]));
  const x = scaleTo(roundTop(highest), 92, 12);
  const base = 24 + 24 * rows.length;
  const parts = rows.flatMap(([name, { value_kmh, interval95_kmh: [low, high] }, look, height], row) => {
    const y = 26 + 24 * row;
    return [text(0, y + 4, name),
      svg('rect', { x: x(low), y: y - height / 2, width: x(high) - x(low), height, rx: 2, class: look }),
      svg('circle', { cx: x(value_kmh), cy: y, r: row ? 3 : 4.5, class: 'dot' })];
  });
  const marked = guess === null ? [] : [
    line(x(guess), 13, x(guess), base, 'guess'), text(x(guess), 9, `guess by traffic alone ${Math.round(guess)}`, 'middle')];
  const label = rows.map(([name, { value_kmh, interval95_kmh }]) =>
    `${name} ${Math.round(value_kmh)}, likely ${rangeOf(interval95_kmh)}`).join('; ');
  return plot(base + 20, `${label} km/h`, axisBelow(x, base), ...parts, ...marked);
}

const hoursOf = (iso) => wallClock(iso).getTime() / 3_600_000;

/** Intervals over the hours of a day: the same cell in its slots. Thin ones are guesses. No line joins them. */
export function dayPlot(cell, day) {
  const known = day.filter(({ interval }) => interval);
  const top = roundTop(Math.max(...known.filter(({ kind }) => kind !== 'dotted').map(({ interval }) => interval[1]), 0));
  const [above, base] = [8, 112];
  const midnight = 24 * Math.floor(hoursOf(cell.hat.slot_start) / 24);
  const x = scaleTo(24, LEFT, RIGHT);
  const y = (kmh) => base - (Math.min(kmh, top) / top) * (base - above);
  const place = ({ hat }) => [hoursOf(hat.slot_start), hoursOf(hat.slot_end)].map((hours) => x(hours - midnight));
  const [from, to] = place(cell);
  const bars = known.map((slot) => {
    const [start, end] = place(slot);
    const [low, high] = slot.interval;
    const isGuess = slot.kind === 'dotted';
    const width = isGuess ? 1.5 : Math.max(2, 0.7 * (end - start));
    return svg('g', {}, svg('title', {}, `${clockOf(slot.hat.slot_start)}: ${briefOf(slot)}`),
      svg('rect', { x: (start + end - width) / 2, y: y(high), width, height: Math.max(1, y(low) - y(high)), rx: 1,
        class: isGuess ? 'bar thin' : `bar ${slot.kind} step-${slot.step}` }),
      isGuess ? null : svg('circle', { cx: (start + end) / 2, cy: y(slot.value), r: 2, class: 'dot' }));
  });
  const measured = known.filter(({ kind }) => kind !== 'dotted').length;
  return Object.assign(plot(132, `The cell by the hour: measured in ${counted(measured, 'slot')} of ${day.length}`,
    svg('rect', { x: from, y: above, width: Math.max(2, to - from), height: base - above, class: 'now' }),
    ...ticksTo(top).map((kmh) => svg('g', {}, line(x(0), y(kmh), x(24), y(kmh), kmh ? 'grid' : 'base'),
      text(LEFT - 6, y(kmh) + 4, kmh, 'last'))),
    ...[0, 6, 12, 18, 24].map((hour) => text(x(hour), base + 15, `${String(hour).padStart(2, '0')}:00`, hour === 24 ? 'last' : 'middle')),
    ...bars), { id: 'day' });
}

/** How speeds spread: a CDF where it errs little enough, else by how much a share may be off. */
function spreadOf(estimate) {
  const { cdf, cdf_withheld, expected_sup_error: error } = estimate;
  const title = element('h3', {}, 'Spread of speeds');
  if (!cdf) {
    const why = { city_untold: 'Not known yet: too little is released so far to tell how speeds spread in this city.',
      off: 'Not released in this deployment, by its settings or as its budget is too small.' }[cdf_withheld];
    return why ? [title, element('p', { class: 'spread' }, why)] : [];
  }
  if (error === null || error === undefined || error > CDF_ERROR) {
    const points = error ? `a share may be off by ${Math.round(100 * error)} points of 100` : 'its error is not known';
    return [title, element('p', { class: 'spread' }, `Too uncertain to draw: ${points}.`)];
  }
  return [title, cdfPlot(cdf, error), element('ul', { class: 'spread' }, ...sharesOf(estimate)),
    element('p', { class: 'muted' }, 'The line is the share of readings up to each speed, the band its 95 % range, the '
      + 'dashed line that of the whole city.')];
}

const PARTS = { 0.1: 'One reading in ten is', 0.5: 'Half of the readings are', 0.9: 'Nine readings in ten are' };

function sharesOf({ quantiles_kmh, quantiles_interval95_kmh, share_below_kmh, share_below_interval95 }) {
  const percent = (share) => Math.round(100 * share);
  const below = Object.entries(share_below_interval95 ?? {}).filter(([kmh]) => kmh === '10').map(([kmh, range]) =>
    `${percent(share_below_kmh[kmh])} % of the readings are at most 10 km/h, likely ${range.map(percent).join(' to ')} %.`);
  const quantiles = Object.entries(quantiles_interval95_kmh ?? {}).map(([share, range]) =>
    `${PARTS[share]} at most ${Math.round(quantiles_kmh[share])} km/h${range[1] < 0.5 ? '' : `, likely ${rangeOf(range)}`}.`);
  return [...below, ...quantiles].map((words) => element('li', {}, words));
}

/** Shares are known at the edges only, so it is drawn in steps, within its band. */
function cdfPlot({ edges_kmh: edges, values, band, guess }, error) {
  const [above, base] = [8, 138];
  const nearlyAll = edges[values.findIndex((share) => share >= 0.99)] ?? edges.at(-1);
  const x = scaleTo(roundTop(nearlyAll), LEFT, RIGHT);
  const y = (share) => base - share * (base - above);
  const shown = edges.filter((edge) => edge <= x.top);
  const stepsOf = (shares) => shown.flatMap((edge, i) =>
    [[x(edge), y(i ? shares[i - 1] : 0)], [x(edge), y(shares[i])]]).concat([[x(x.top), y(shares[shown.length - 1])]]);
  const path = (points) => `M${points.map((point) => point.map((at) => at.toFixed(1)).join(' ')).join('L')}`;
  const [low, high] = band;
  return Object.assign(plot(160, `Share of readings up to each speed; a share may be off by ${Math.round(100 * error)} points`,
    ...[0, 0.5, 1].map((share) => svg('g', {}, line(x(0), y(share), x(x.top), y(share), 'grid'),
      text(LEFT - 6, y(share) + 4, `${100 * share} %`, 'last'))),
    svg('path', { d: `${path([...stepsOf(high), ...stepsOf(low).reverse()])}Z`, class: 'band' }),
    line(x(10), above, x(10), base, 'slow'),
    guess ? svg('path', { d: path(stepsOf(guess)), class: 'guess' }) : null,
    svg('path', { d: path(stepsOf(values)), class: 'steps' }), axisBelow(x, base)), { id: 'cdf' });
}
