// The page: which slot and cell are shown, and keeping them fresh. A notice says that a slot is new; the page fetches it.

import { CellMap, markAt } from './map.js';
import { dayPlot, element, emptyPanel, panelOf, svg } from './panel.js';
import { CellTable } from './table.js';
import {
  daySpan, drawDate, drawMeasured, listenWhen, rowsAt, slotsOf, typical, usualCells, usualWords, weekOf,
} from './when.js';
import {
  cellsOf, clockOf, counted, dayOf, liveOf, placesFrom, protectedOf, slotWords, STEPS_KMH, summaryOf, warningsOf,
} from './words.js';

const KINDS = ['releases', 'estimates', 'withdrawals'];
const KEPT_SLOTS = 6; // decoded, so that a slider goes back and forth at once
const SOON_MS = 150; // notices of one commit come together
const AGAIN_MS = 2000;
const LOOK_MS = 30_000; // whether the newest slot is still new
const REFUSED_MS = 5000; // until a stream is asked for again: there are too many, or a proxy has lost its server

const at = (id) => document.getElementById(id);
const chosen = new URLSearchParams(location.hash.slice(1));
const state = {
  slots: [], outlines: {}, cells: [], records: new Map(), drawn: '', places: '', isOpen: false, aheadMs: 0,
  slot: chosen.get('slot'), cell: chosen.get('cell'), isReady: false,
  date: null, days: null, newest: null, isUsual: false, // another day than the newest; the first and last day
};
const map = new CellMap(at('map'), choose);
const table = new CellTable(at('cells'), choose);
if (state.cell) table.choose(state.cell);

async function get(path) {
  const answer = await fetch(path, { cache: 'no-cache' });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer;
}
const records = async (kind, query) => {
  const text = await (await get(`v1/${kind}?${new URLSearchParams(query)}`)).text();
  return text.split('\n').filter((line) => line).map((line) => JSON.parse(line));
};

// --- what is there ---

let refreshing = Promise.resolve();
let timer = 0;
const refresh = () => { refreshing = refreshing.then(refreshed).catch(() => refreshIn(AGAIN_MS)); };
const refreshIn = (ms) => { clearTimeout(timer); timer = setTimeout(refresh, ms); };

/** Look at what the server has, and draw what differs. A server that is still reading is asked again. */
async function refreshed() {
  if (!state.isReady) await get('readyz');
  state.isReady = true;
  const answer = await get('v1/slots');
  const { slots, synthetic, days } = await answer.json();
  state.aheadMs = (Date.parse(answer.headers.get('date')) || Date.now()) - Date.now();
  at('synthetic').hidden = !synthetic;
  if (!slots.length) return;
  Object.assign(state, { days, newest: slots.at(-1) });
  if (state.slot && !slots.some(({ slot_start }) => slot_start === state.slot)) state.date ??= state.slot.slice(0, 10);
  state.slots = state.date ? await slotsOf(state.date) : slots;
  const [outlines] = await Promise.all([get('v1/outlines'), lookAtPlaces()]);
  state.outlines = await outlines.json();
  showLive();
  drawTime();
  if (state.slots.length) await drawSlot();
  else drawNothing();
}

/** A day without records. */
function drawNothing() {
  Object.assign(state, { drawn: '', cells: [] });
  at('when').textContent = dayOf(`${state.date}T00:00`);
  at('summary').textContent = 'There are no records of this day.';
  at('downloads').hidden = true;
  table.draw([]);
  map.draw([], state.outlines);
  at('panel').replaceChildren(...emptyPanel());
  document.body.dataset.slot = state.date;
}

/** Names and lines, where others came since. */
async function lookAtPlaces() {
  const places = await (await get('v1/places')).text();
  if (places === state.places) return;
  map.drawLines(placesFrom(JSON.parse(places)));
  Object.assign(state, { places, drawn: '' });
}

const newest = () => state.slots.at(-1);
const shownSlot = () => state.slots.find(({ slot_start }) => slot_start === state.slot) ?? newest();

/** The records of a slot in this version. */
async function cellsIn({ slot_start: slot, version }) {
  const known = state.records.get(slot);
  if (known?.version === version) return known;
  const [releases, estimates, withdrawals] = await Promise.all(KINDS.map((kind) => records(kind, { slot })));
  const found = { version, releases, estimates, cells: cellsOf(releases, estimates, withdrawals) };
  state.records.delete(slot);
  state.records.set(slot, found);
  while (state.records.size > KEPT_SLOTS) state.records.delete(state.records.keys().next().value);
  return found;
}

async function drawSlot() {
  const slot = shownSlot();
  if (!slot) return;
  at('when').textContent = slotWords(slot);
  const found = await cellsIn(slot);
  if (shownSlot() !== slot) return; // the slider has moved on
  const drawn = `${slot.slot_start} ${slot.version}`;
  if (state.drawn !== drawn) {
    state.drawn = drawn;
    state.cells = found.cells;
    drawWords(slot, found);
    const usual = state.isUsual ? usualCells(rowsAt(await typical({}), slot), slot, found.cells) : null;
    if (usual) at('summary').replaceChildren(usualWords(usual, slot));
    table.draw(usual ?? found.cells); // before the map: it asks where it is scrolled to
    map.draw(usual ?? found.cells, state.outlines);
    at('whole').hidden = false;
    document.body.dataset.slot = slot.slot_start;
    await drawPanel();
  } else await drawDay();
}

// --- words ---

function drawWords(slot, { releases, estimates, cells }) {
  const lacking = releases.length ? '' : ' There are no releases here, so nothing counts as measured.';
  at('summary').textContent = summaryOf(cells) + lacking;
  const warnings = warningsOf([...releases, ...estimates], releases);
  at('banner').replaceChildren(...warnings.map((words) => element('p', {}, words)));
  at('banner').hidden = !warnings.length;
  at('protected').textContent = releases.length ? protectedOf(releases[0].privacy) : '';
  const link = (kind, form) => element('a', {
    href: `v1/${kind}?${new URLSearchParams({ slot: slot.slot_start, form })}`, download: '' },
  { ndjson: 'NDJSON', csv: 'CSV', geojson: 'GeoJSON' }[form]);
  const links = (kind) => ['ndjson', 'csv', 'geojson'].flatMap((form) => [' ', link(kind, form)]);
  at('downloads').replaceChildren('This slot: estimates', ...links('estimates'), ' · releases', ...links('releases'),
    ' · ', element('a', { href: 'privacy' }, 'privacy'));
  at('downloads').hidden = false;
}

function drawLegend() {
  const hex = (name, fill = '') => svg('svg', { viewBox: '0 0 20 20', class: 'swatch' },
    svg('path', { d: 'M10 1 18 5.5v9L10 19 2 14.5v-9z', class: `cell ${name}`, ...(fill && { fill }) }));
  const mark = svg('svg', { viewBox: '-10 -11 20 20', class: 'swatch' }, markAt(0, 0));
  const steps = STEPS_KMH.map((kmh, step) => element('li', { class: `step-${step}` }, kmh ? `${kmh}+` : `<${STEPS_KMH[1]}`));
  const key = (swatch, words) => element('li', {}, swatch, words);
  at('legend').replaceChildren(
    element('div', {}, 'Estimated mean speed, km/h', element('ul', { class: 'steps' }, ...steps)),
    element('ul', { class: 'keys' }, key(hex('solid step-2'), 'within 5 km/h'),
      key(hex('striped step-2', 'url(#stripes-2)'), 'within 10 km/h'),
      key(hex('dotted'), 'measured, range too wide'), key(hex('dotted unmeasured'), 'no more than a guess'),
      key(mark, 'not as usual')));
}

// --- time ---

function drawTime() {
  const { slots } = state;
  const [range, last] = [at('slot'), slots.length - 1];
  const most = Math.max(1, ...slots.map(({ hats }) => total(hats)));
  at('bars').replaceChildren(...slots.map((slot) => {
    const bar = element('div', { class: 'bar', title: `${clockOf(slot.slot_start)}: ${measuredWords(slot)}` });
    const [all, released] = [element('i', { class: 'all' }), element('i', { class: 'released' })];
    all.style.height = `${(100 * total(slot.hats)) / most}%`;
    released.style.height = `${(100 * (slot.hats.released ?? 0)) / most}%`;
    bar.append(all, released);
    return bar;
  }));
  at('time').style.setProperty('--slots', slots.length);
  const each = Math.ceil(slots.length / 8);
  at('hours').replaceChildren(...slots.map(({ slot_start }, i) =>
    element('span', {}, (last - i) % each ? '' : clockOf(slot_start))));
  range.max = last;
  range.disabled = last < 1;
  moveSlider();
}

const total = (hats) => Object.values(hats).reduce((sum, n) => sum + n, 0);
const measuredWords = ({ hats }) => `${hats.released ?? 0} of ${counted(total(hats), 'cell')} released`;

function moveSlider() {
  const slot = shownSlot();
  const index = state.slots.indexOf(slot);
  at('slot').value = index;
  at('newest').disabled = slot === newest() && !state.date;
  drawDate(state.days, state.slots, slot?.slot_start ?? state.date);
  drawMeasured(state.slots, slot);
  if (!slot) return;
  at('slot').setAttribute('aria-valuetext', `${slotWords(slot)}; ${measuredWords(slot)}`);
  for (const [i, bar] of [...at('bars').children].entries()) bar.classList.toggle('now', i === index);
}

/** At the newest slot the page follows what comes; at another it stays. */
function showSlot(index) {
  const slot = state.slots[index];
  state.slot = slot === newest() && !state.date ? null : slot.slot_start;
  moveSlider();
  remember();
  drawSlot().catch(() => refreshIn(AGAIN_MS));
}

function remember() {
  const kept = Object.entries({ slot: state.slot, cell: state.cell }).filter(([, value]) => value);
  history.replaceState(null, '', kept.length ? `#${new URLSearchParams(kept)}` : location.pathname + location.search);
}

// --- the chosen cell ---

function choose(id) {
  state.cell = id === state.cell ? null : id;
  table.choose(state.cell);
  map.choose(state.cell);
  remember();
  drawPanel().catch(() => refreshIn(AGAIN_MS));
}

const chosenCell = () => state.cells.find(({ id }) => id === state.cell);

async function drawPanel() {
  const cell = chosenCell();
  const isFocused = at('panel').contains(document.activeElement);
  at('panel').replaceChildren(...(cell ? panelOf(cell, close) : emptyPanel()));
  if (isFocused) at('panel').querySelector('button')?.focus();
  if (cell && map.chosen !== cell.id) map.choose(cell.id);
  await drawDay();
}

let days = 0;
async function drawDay() {
  const [cell, turn] = [chosenCell(), ++days];
  if (!cell) return;
  const query = { cell: cell.id };
  const span = daySpan(cell.hat.slot_start);
  const lists = await Promise.all(KINDS.map((kind) => records(kind, { ...query, ...span })));
  if (turn !== days) return;
  at('day').replaceWith(dayPlot(cell, dayFrom(cell, lists)));
  const week = weekOf(await typical(query), cell);
  if (turn !== days) return;
  at('week')?.remove();
  at('day').after(week);
}

/** The cell in each slot of the shown slot's day. */
function dayFrom({ hat }, lists) {
  const bySlot = new Map();
  for (const [part, list] of lists.entries()) {
    for (const record of list) {
      const { slot_start } = record.hat;
      if (dayOf(slot_start) !== dayOf(hat.slot_start)) continue;
      if (!bySlot.has(slot_start)) bySlot.set(slot_start, [[], [], []]);
      bySlot.get(slot_start)[part].push(record);
    }
  }
  return Array.from(bySlot.values(), (records) => cellsOf(...records)[0]).filter((cell) => cell);
}

function close() {
  const id = state.cell;
  if (!id) return;
  choose(id);
  table.focus(id);
}

// --- news of the server ---

let stream = null;
function listen() {
  stream?.close();
  stream = new EventSource('v1/stream');
  stream.addEventListener('open', () => { showLive(true); refresh(); });
  stream.addEventListener('slot', () => refreshIn(SOON_MS));
  stream.addEventListener('error', () => {
    showLive(false);
    state.isReady = false;
    if (stream.readyState !== EventSource.CLOSED) return; // the browser tries again
    refresh(); // refused: the page is as new as its last look
    setTimeout(listen, REFUSED_MS);
  });
}

function showLive(isOpen = state.isOpen) {
  state.isOpen = isOpen;
  const said = state.newest ? liveOf(state.newest, Date.now() + state.aheadMs) : 'Connected';
  at('live').textContent = isOpen ? said : 'No connection, trying again';
  at('live').classList.toggle('is-open', isOpen);
  at('live').classList.toggle('is-live', isOpen && said === 'Live');
}

at('slot').addEventListener('input', (event) => showSlot(Number(event.target.value)));
at('newest').addEventListener('click', () => {
  if (!state.date) return showSlot(state.slots.length - 1);
  Object.assign(state, { date: null, slot: null });
  remember();
  return refresh();
});
listenWhen({
  chooseDate(date) {
    Object.assign(state, { date, slot: null });
    refresh();
  },
  chooseUsual(isUsual) {
    Object.assign(state, { isUsual, drawn: '' });
    drawSlot().catch(() => refreshIn(AGAIN_MS));
  },
});
at('whole').addEventListener('click', () => map.showWhole());
document.addEventListener('keydown', ({ key, target }) => {
  if (key === 'Escape' && target !== at('find')) close(); // there it empties the field
});
document.addEventListener('visibilitychange', () => { // a page that nobody sees holds no stream
  if (document.hidden) stream.close();
  else listen();
});

setInterval(showLive, LOOK_MS);
drawLegend();
at('panel').replaceChildren(...emptyPanel());
listen();
