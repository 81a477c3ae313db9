// When: another day by its date, the day's measured cells by the hour, and the typical week of a cell and of the city.

import { element, svg } from './panel.js';
import { cellsOf, clockOf, counted, dayOf, rangeOf, wallClock } from './words.js';

const CLASSES = ['weekday', 'weekday', 'weekday', 'weekday', 'weekday', 'saturday', 'sunday']; // from Monday on
const NAMES = ['Mondays', 'Tuesdays', 'Wednesdays', 'Thursdays', 'Fridays', 'Saturdays', 'Sundays'];
const [SIDE, GAP, LEFT, TOP] = [11, 1, 26, 4]; // of the week's small cells

const at = (id) => document.getElementById(id);
const dateOf = (iso) => iso.slice(0, 10);
const hourOf = (iso) => wallClock(iso).getUTCHours();
const weekdayOf = (iso) => (wallClock(iso).getUTCDay() + 6) % 7;

/** The rows of `/v1/typical`; none while the week is being made. */
export async function typical(query) {
  const answer = await fetch(`v1/typical?${new URLSearchParams(query)}`, { cache: 'no-cache' });
  if (!answer.ok) return [];
  return (await answer.text()).split('\n').filter((line) => line).map((line) => JSON.parse(line));
}

/** The local day of a time, or of a date, as a span. */
export function daySpan(iso) {
  const next = new Date(`${dateOf(iso)}T00:00Z`);
  next.setUTCDate(next.getUTCDate() + 1);
  return { from: dateOf(iso), to: next.toISOString().slice(0, 10) };
}

/** The slots of a local day. */
export async function slotsOf(date) {
  const answer = await fetch(`v1/slots?${new URLSearchParams(daySpan(date))}`, { cache: 'no-cache' });
  return (await answer.json()).slots;
}

/** A city of its usual speeds, as cells of the shown slot. Where no day has a release it is a guess. */
export function usualCells(rows, slot, known) {
  const hats = new Map(known.map(({ id, hat }) => [id, hat]));
  const releases = [];
  const guesses = [];
  for (const { cell, value_kmh, low_kmh, high_kmh, days } of rows) {
    const hat = hats.get(cell) ?? { cell, slot_start: slot.slot_start, slot_end: slot.slot_end };
    const shown = { value_kmh, interval95_kmh: [low_kmh, high_kmh] };
    if (days) releases.push({ hat, mean: shown });
    else guesses.push({ hat, ...shown, news: 0 });
  }
  return cellsOf(releases, guesses);
}

export const rowsAt = (rows, { slot_start }) => {
  const [day, hour] = [dayClass(rows, slot_start), hourOf(slot_start)];
  return rows.filter((row) => row.day === day && row.hour === hour);
};

/** What the day is, but for holidays; a class that no day was of has the weekdays' speeds. */
function dayClass(rows, iso) {
  const day = CLASSES[weekdayOf(iso)];
  return rows.some((row) => row.day === day) ? day : 'weekday';
}

export function usualWords(cells, slot) {
  const measured = cells.filter(({ kind }) => kind !== 'dotted').length;
  return `Usual speeds, ${NAMES[weekdayOf(slot.slot_start)]} at ${hourOf(slot.slot_start)}: `
    + `${measured} of ${counted(cells.length, 'cell')} from releases; the others are a guess.`;
}

/** "Tuesdays at 8: usually 14 (13 to 16), from 9 days; today 9." */
function sentenceOf(row, cell) {
  const start = cell.hat.slot_start;
  const when = `${row.day === CLASSES[weekdayOf(start)] ? NAMES[weekdayOf(start)] : 'Weekdays'} at ${row.hour}`;
  const from = row.days ? `from ${counted(row.days, 'day')}` : 'no more than a guess';
  const today = cell.value === null || cell.withdrawn !== null ? '' : `; today ${Math.round(cell.value)}`;
  const usual = `${Math.round(row.value_kmh)} (${rangeOf([row.low_kmh, row.high_kmh])})`;
  return `${when}: usually ${usual}, ${from}${today}.${comparison(row, cell)}`;
}

/** Today is another than usual where it is marked so, or neither interval reaches the other. */
function comparison(row, { interval, kind, isNews, value }) {
  if (!interval || kind === 'dotted' || !row.days) return '';
  if (isNews) return value < row.value_kmh ? ' Slower than usual.' : ' Faster than usual.';
  if (interval[1] < row.low_kmh) return ' Slower than usual.';
  return interval[0] > row.high_kmh ? ' Faster than usual.' : ' As usual, as far as both tell.';
}

/** Seven days of small cells. Each has its words; the sentence says the shown hour. */
export function weekOf(rows, cell) {
  const start = cell.hat.slot_start;
  const shown = rowsAt(rows, { slot_start: start })[0];
  const [title, words] = [element('h3', {}, 'A typical week'), []];
  if (shown) words.push(sentenceOf(shown, cell));
  const changed = rows.find((row) => row.changed)?.changed;
  if (changed) words.push(`This street has changed: usual is what it is since ${dayOf(`${changed}T00:00`)}.`);
  if (!rows.length) return element('div', { id: 'week' }, title, element('p', {}, 'Not known yet.'));
  const byHour = new Map(rows.map((row) => [`${row.day} ${row.hour}`, row]));
  const small = CLASSES.flatMap((day, line) => Array.from({ length: 24 }, (_, hour) => {
    const row = byHour.get(`${day} ${hour}`);
    const isNow = line === weekdayOf(start) && hour === hourOf(start);
    const place = { x: LEFT + hour * (SIDE + GAP), y: TOP + line * (SIDE + GAP), width: SIDE, height: SIDE };
    if (!row) return isNow ? svg('rect', { ...place, class: 'hour none now' }) : null;
    const [one] = usualCells([row], cell.hat, []);
    return svg('rect', { ...place, class: `hour ${one.kind} step-${one.step}${one.isMeasured ? '' : ' unmeasured'}${isNow ? ' now' : ''}` },
      svg('title', {}, `${NAMES[line]} at ${hour}: ${Math.round(row.value_kmh)}, likely ${rangeOf([row.low_kmh, row.high_kmh])}`));
  })).filter((rect) => rect);
  const label = (x, y, what, name) => svg('text', { x, y, class: name }, what);
  const names = NAMES.map((name, line) => label(LEFT - 4, TOP + line * (SIDE + GAP) + SIDE - 2, name.slice(0, 2), 'last'));
  const bottom = TOP + 7 * (SIDE + GAP) + 11;
  const hours = [0, 6, 12, 18].map((hour) => label(LEFT + hour * (SIDE + GAP), bottom, `${String(hour).padStart(2, '0')}:00`, ''));
  const picture = svg('svg', { viewBox: `0 0 ${LEFT + 24 * (SIDE + GAP) + 4} ${bottom + 4}`, role: 'img', class: 'plot week',
    'aria-label': `Usual speeds by day and hour. ${words.join(' ')}` }, ...small, ...names, ...hours);
  return element('div', { id: 'week' }, title, picture, element('p', { class: 'usually' }, words.join(' ')));
}

/** The shown slot's day: measured cells of those with buses, by the hour. */
export function drawMeasured(slots, shown) {
  const day = slots.filter(({ slot_start }) => dateOf(slot_start) === dateOf(shown.slot_start));
  const total = (hats) => Object.values(hats).reduce((sum, n) => sum + n, 0);
  at('measured').replaceChildren(...day.map(({ slot_start, hats }) => element('li', {},
    element('b', {}, clockOf(slot_start)), ` ${hats.released ?? 0} of ${total(hats)}`)));
}

/** The date of the shown slot; from the first to the last that is there. `choose` gets another. */
export function drawDate(days, slots, shown) {
  const [first, last] = days ?? (slots.length ? [slots[0], slots.at(-1)].map(({ slot_start }) => dateOf(slot_start)) : []);
  Object.assign(at('date'), { min: first ?? '', max: last ?? '', value: dateOf(shown), disabled: first === last });
}

export function listenWhen({ chooseDate, chooseUsual }) {
  at('date').addEventListener('change', ({ target }) => { if (target.validity.valid && target.value) chooseDate(target.value); });
  for (const [id, isUsual] of [['now', false], ['usual', true]]) {
    at(id).addEventListener('click', () => {
      at('now').setAttribute('aria-pressed', !isUsual);
      at('usual').setAttribute('aria-pressed', isUsual);
      chooseUsual(isUsual);
    });
  }
}
