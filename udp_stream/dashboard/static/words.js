// What records say, as classes and words. Nothing here touches the page.

export const STEPS_KMH = [0, 10, 15, 20, 25, 30]; // no finer than what "solid" promises
const SOLID_KMH = 10; // widest 95 % interval of a solid cell
const STRIPED_KMH = 20; // and of a striped one; beyond it a value is no more than a guess
const NEWS = 0.5; // above it a cell is not as usual
const INCIDENT = 0.4; // a street at two fifths of its speed
export const CDF_ERROR = 0.15; // above it a CDF is not drawn
const RECENT = 3; // slots: one that ended longer ago is none of a live feed

const stepOf = (kmh) => STEPS_KMH.findLastIndex((from) => Math.round(kmh) >= from);

/** A slot's cells: release and estimate of each, its value and its class of certainty. */
export function cellsOf(releases, estimates, withdrawals = []) {
  const pairs = new Map(releases.map((release) => [release.hat.cell, [release, null]]));
  for (const estimate of estimates) {
    pairs.set(estimate.hat.cell, [pairs.get(estimate.hat.cell)?.[0] ?? null, estimate]);
  }
  const reasons = new Map(withdrawals.map(({ hat, reason }) => [hat.cell, reason]));
  return Array.from(pairs, ([id, [release, estimate]]) => cellOf(release, estimate, reasons.get(id) ?? null));
}

/** A cell is shown by its estimate, and by its release only where there is no estimate. */
function cellOf(release, estimate, withdrawn) {
  const { hat } = release ?? estimate;
  const mean = release?.mean ?? null;
  const sums = release?.noised ?? null;
  const shown = estimate ?? mean;
  const interval = shown?.interval95_kmh ?? null;
  const isMeasured = (mean ?? sums) !== null && withdrawn === null;
  const kind = kindOf(interval, isMeasured);
  return {
    id: hat.cell, hat, release, estimate, mean, interval, withdrawn,
    value: shown?.value_kmh ?? null,
    step: shown ? stepOf(shown.value_kmh) : null,
    kind,
    isMeasured,
    isNews: kind !== 'dotted' && (estimate?.news ?? 0) > NEWS, // a guess claims no news
    isBlind: estimate !== null && (kind === 'dotted' || interval[0] <= INCIDENT * shown.value_kmh), // no mark, whatever happens
    guess: estimate?.guess?.counts_kmh ?? null,
    amount: amountOf(release, estimate),
    isHidden: sums !== null || Boolean(estimate?.traffic ?? estimate?.plates), // "add-remove": nothing is counted
  };
}

/** How many buses there were: a count where that is public, else what noised sums leave of it, or of their hours. */
function amountOf(release, estimate) {
  const { traffic, plates } = estimate ?? {};
  if (traffic) return { value: traffic.bus_hours, interval: traffic.interval95, noun: 'bus-hour', digits: 1 };
  if (plates) return { value: plates.value, interval: plates.interval95, noun: 'bus', digits: 0 };
  const known = release?.counts?.plates ?? null;
  return known === null ? null : { value: known, interval: null, noun: 'bus', digits: 0 };
}

const figureOf = (value, digits) =>
  value.toLocaleString('en', { minimumFractionDigits: digits, maximumFractionDigits: digits });
export const amountFigure = ({ value, digits }) => figureOf(value, digits);
export const amountRange = ({ interval, digits }, to) =>
  interval ? interval.map((end) => figureOf(end, digits)).join(to) : '';
export const amountWords = (amount) => {
  const nouns = { bus: ['bus', 'buses'], 'bus-hour': ['bus-hour', 'bus-hours'] }[amount.noun];
  const figure = amountFigure(amount);
  return `${figure} ${nouns[figure === '1' ? 0 : 1]}${amount.interval ? `, likely ${amountRange(amount, ' to ')}` : ''}`;
};

/** Without a release a value is a guess, however narrow its interval. */
function kindOf(interval, isReleased) {
  if (!isReleased || !interval) return 'dotted';
  const width = Math.round((interval[1] - interval[0]) * 1000) / 1000;
  return width <= SOLID_KMH ? 'solid' : width <= STRIPED_KMH ? 'striped' : 'dotted';
}

export const idOf = (cell) => cell.replace(/^([0-9a-f]+?)f+(-[nesw]+)?$/, '$1$2');

const places = new Map(); // by cell, from the city's timetable
export const placeOf = (cell) => places.get(cell);
export const nameOf = (cell) => placeOf(cell)?.name ?? idOf(cell);
export const hasNames = () => places.size > 0;
/** What a reader may look for a cell by. */
export const soughtOf = (cell) => [cell, placeOf(cell)?.name ?? '', ...(placeOf(cell)?.routes ?? [])];

/** Take the names of cells; give the lines of the network. */
export function placesFrom({ features }) {
  places.clear();
  const lines = [];
  for (const { geometry, properties } of features) {
    if (properties.cell) places.set(properties.cell, properties);
    else lines.push(...geometry.coordinates);
  }
  return lines;
}
export const numberOf = ({ kind, value }) =>
  value === null ? '–' : `${kind === 'striped' ? '~' : ''}${Math.round(value)}${kind === 'dotted' ? '?' : ''}`;
export const rangeOf = ([low, high], to = ' to ') => `${Math.round(low)}${to}${Math.round(high)}`;
export const counted = (n, noun, nouns = `${noun}s`) => `${n.toLocaleString('en')} ${n === 1 ? noun : nouns}`;

/** The order in which cells deserve a look: not as usual, measured and slow, guessed and slow. */
export function byInterest(one, other) {
  const rank = ({ isNews, kind }) => (isNews ? 0 : kind === 'dotted' ? 2 : 1);
  return rank(one) - rank(other) || (one.value ?? 999) - (other.value ?? 999) || (one.id < other.id ? -1 : 1);
}

/** One line: what a mark on the map stands for. */
export function briefOf(cell) {
  const about = speedOf(cell);
  return cell.isHidden && cell.amount && cell.withdrawn === null ? `${about}; ${amountWords(cell.amount)}` : about;
}

function speedOf(cell) {
  if (cell.withdrawn !== null) return 'withdrawn';
  const why = whyOf(cell);
  const because = why ? ` (${why})` : '';
  if (cell.value === null) return cell.isHidden ? 'no estimate here' : `nothing released${because}`;
  if (cell.kind === 'dotted') return `no more than a guess: ${Math.round(cell.value)} km/h${because}`;
  return `${cell.kind === 'striped' ? 'about ' : ''}${Math.round(cell.value)} km/h, likely ${rangeOf(cell.interval)}`;
}

const WHY = {
  withheld_few_plates: 'too few buses', withheld_budget: 'no budget left', withheld_uninformative: 'noise would hide it',
  withheld_unplanned: 'not planned', withheld_partial: 'too little was read', withheld_unit: 'unit in doubt',
};
export const WIDE = 'range too wide';

/** Why a cell is grey, in two or three words; empty where it is not, or nobody may know. */
export function whyOf({ kind, isMeasured, isHidden, withdrawn, release, estimate }) {
  if (kind !== 'dotted' || withdrawn !== null) return '';
  if (isMeasured) return WIDE;
  if (isHidden) return '';
  const unknown = { undefined: '', null: 'no bus' }[estimate?.release_id] ?? 'release not here';
  return WHY[release?.status] ?? unknown;
}

/** The cell in sentences. */
export function sentencesOf(cell) {
  const { kind, value, interval, guess, amount, mean, isHidden } = cell;
  const said = [];
  if (value === null) said.push('No speed is known here.');
  else if (kind !== 'dotted') said.push(`${sentence(speedOf(cell))}.`);
  else said.push(`No more than a guess: ${Math.round(value)} km/h, likely ${rangeOf(interval)}.`);
  if (whyOf(cell) === WIDE) said.push('It is grey as its range is too wide.');
  if (cell.isBlind && !cell.isNews) said.push('An incident would not show here.');
  if (amount !== null) said.push(`${amountWords(amount)}.`);
  if (isHidden && guess !== null) said.push(guessWords(guess));
  else if (isHidden) return said;
  else if (mean === null) said.push(withheldOf(cell));
  else if (guess !== null) said.push(guessWords(guess));
  return said;
}

const guessWords = (guess) => `Its guess by traffic alone is ${Math.round(guess)} km/h.`;

const sentence = (words) => words[0].toUpperCase() + words.slice(1);

function withheldOf({ release, estimate }) {
  const period = release?.privacy.period;
  const within = period === '1d' ? 'today' : period === 'lifetime' ? 'at all' : `in ${spanOf(period ?? '')}`;
  return {
    withheld_few_plates: 'Nothing was released: too few buses came through.',
    withheld_budget: `Nothing was released: the buses here have spent what may be told of them ${within}.`,
    withheld_uninformative: 'Nothing was released: noise would have drowned what there was to learn.',
    withheld_unplanned: 'Nothing was released: the slot’s plan did not know of this cell.',
    withheld_partial: 'Nothing was released: less than half of this slot was read.',
    withheld_unit: 'Nothing was released: speeds seem to be in another unit than the one set.',
  }[release?.status] ?? (estimate?.release_id ? 'Its release is not here.' : 'No bus came through in this slot.');
}

/** How many cells are grey, by why. */
export function greyOf(cells) {
  const reasons = new Map();
  for (const why of cells.map(whyOf)) if (why) reasons.set(why, (reasons.get(why) ?? 0) + 1);
  const said = [...reasons].sort(([, one], [, other]) => other - one).map(([why, n]) => `${n} ${why}`);
  return said.length ? `Grey: ${said.join(', ')}.` : '';
}

/** The sentence on top: how much of the slot says more than a guess. */
export function summaryOf(cells) {
  const of = (kind) => cells.filter((cell) => cell.kind === kind).length;
  const [solid, striped, dotted] = ['solid', 'striped', 'dotted'].map(of);
  const news = cells.filter((cell) => cell.isNews).length;
  const said = `Of ${counted(cells.length, 'cell')}, ${solid} are measured well and ${striped} roughly; `
    + `${dotted} are no more than a guess.`;
  const marked = [[news, 'not as usual'], [cells.filter((cell) => cell.withdrawn !== null).length, 'withdrawn']];
  const more = marked.filter(([n]) => n).map(([n, what]) => ` ${n} ${n === 1 ? 'is' : 'are'} ${what}.`);
  return said + more.join('');
}

/** Whether slots still come, at this time of the server; else until when they came. */
export function liveOf({ slot_start, slot_end }, nowMs) {
  const [start, end] = [slot_start, slot_end].map((iso) => Date.parse(iso));
  return nowMs - end < RECENT * (end - start) ? 'Live' : `Recorded, until ${dayOf(slot_end)}, ${clockOf(slot_end)}`;
}

/** Whether whole plates are hidden. */
export const isWhole = ({ neighbours }) => neighbours === 'add-remove';

/** A bus's budget, and what it is for. */
export function budgetOf(privacy) {
  const { period_epsilon, period_rho, period, delta } = privacy;
  const per = { '1d': 'a day', lifetime: 'a lifetime' }[period] ?? spanOf(period);
  const more = [delta && `delta ${delta.toExponential()}`, isWhole(privacy) && `rho ${period_rho}`].filter((part) => part);
  return { amount: `epsilon ${period_epsilon}${more.length ? ` (${more.join(', ')})` : ''}`, per };
}

export function protectedOf(privacy) {
  const { amount, per } = budgetOf(privacy);
  if (isWhole(privacy)) {
    return `Protected: all that each bus sent, that it was there, too (${privacy.neighbours}), within ${amount} for ${per}; `
      + `its speeds alone within epsilon ${privacy.swap_epsilon}. The cells are a public list.`;
  }
  return `Protected: the speeds of each bus, within ${amount} for ${per}. `
    + 'Not protected: which cells have buses, and how many.';
}

/** "12h" as people say it. */
function spanOf(period) {
  const [, n, unit] = /^(\d+)([smhdw])$/.exec(period) ?? [];
  const noun = { s: 'second', m: 'minute', h: 'hour', d: 'day', w: 'week' }[unit];
  return noun ? counted(Number(n), noun) : period;
}

/** What must be known before any figure is used. */
export function warningsOf(records, releases) {
  const said = new Set(releases.flatMap((release) => release.privacy.caveats ?? []).map(
    (caveat) => `Caveat: ${caveat}. Buses may have lost more than the records say.`));
  if (!records.some((record) => record.trial)) return [...said];
  return ['Trial: another run draws every value again, so these records are not for publication.', ...said];
}

/** A time as clocks showed it in the city, for Intl in UTC: records carry the city's offset. */
export function wallClock(iso) {
  const [, ...parts] = /^(\d{4})-?(\d\d)-?(\d\d)T(\d\d):?(\d\d)/.exec(iso) ?? [];
  const [year, month, day, hour, minute] = parts.map(Number);
  return new Date(Date.UTC(year, month - 1, day, hour, minute));
}

const format = (options) => new Intl.DateTimeFormat('en-GB', { timeZone: 'UTC', ...options });
const DAY = format({ weekday: 'long', day: 'numeric', month: 'long', year: 'numeric' });
const CLOCK = format({ hour: '2-digit', minute: '2-digit' });
export const dayOf = (iso) => DAY.format(wallClock(iso));
export const clockOf = (iso) => CLOCK.format(wallClock(iso));
export const slotWords = ({ slot_start, slot_end }) =>
  `${dayOf(slot_start)}, ${clockOf(slot_start)} to ${clockOf(slot_end)}`;
