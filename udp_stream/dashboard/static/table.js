// The table: the equal of the map, and the first of the two for keyboards.

import { element } from './panel.js';
import { amountFigure, amountRange, byInterest, counted, greyOf, hasNames, idOf, nameOf, numberOf, rangeOf, soughtOf } from './words.js';

const wordsOf = (text) => text.toLowerCase().normalize('NFKD').split(/[^\p{L}\p{M}\p{N}]+/u).filter((word) => word);

const ROW_PX = 20; // no row is lower
const FIRST_ROWS = 100; // drawn with the map; the others follow when there is time
const COLUMNS = [
  ['Cell', ({ id }) => nameOf(id)],
  ['km/h', ({ value }) => value],
  ['Likely', ({ interval }) => interval && interval[1] - interval[0]],
  ['Guess by traffic alone', ({ guess }) => guess],
  ['Buses', ({ amount }) => amount && amount.value],
];

export class CellTable {
  /** `section` holds a table; `choose` is called with a cell's id when its row is clicked. */
  constructor(section, choose) {
    this.section = section;
    [this.head, this.body] = section.querySelectorAll('thead tr, tbody');
    this.scroller = section.querySelector('.scroller');
    this.order = section.querySelector('#order');
    this.grey = section.querySelector('#grey');
    this.find = section.querySelector('#find');
    this.find.addEventListener('input', () => this.draw(this.cells));
    this.find.addEventListener('keydown', ({ key }) => {
      const first = key === 'Enter' && this.find.value.trim() && this.body.querySelector('tr');
      if (first && first.dataset.cell !== this.chosen) choose(first.dataset.cell);
    });
    this.cells = [];
    this.chosen = null;
    this.sort = null;
    this.turn = 0;
    this.head.replaceChildren(...COLUMNS.map(([name], column) => {
      const button = element('button', { type: 'button' }, name);
      button.addEventListener('click', () => this.sortBy(column));
      return element('th', { scope: 'col', 'aria-sort': 'none' }, button);
    }));
    this.body.addEventListener('click', (event) => {
      const row = event.target.closest('tr');
      if (row) choose(row.dataset.cell);
    });
    // Thousands of rows are no stops of the tabulator: the last that had the focus is one, arrows go to the others.
    this.body.addEventListener('focusin', ({ target }) => {
      this.row(this.stop)?.querySelector('button').setAttribute('tabindex', -1);
      this.stop = target.closest('tr').dataset.cell;
      target.setAttribute('tabindex', 0);
    });
    this.body.addEventListener('keydown', (event) => {
      const row = event.target.closest('tr');
      const next = { ArrowUp: row.previousElementSibling, ArrowDown: row.nextElementSibling }[event.key];
      if (!next) return;
      this.focus(next.dataset.cell, false);
      event.preventDefault();
    });
  }

  /** Up, down, and back to the order of interest. */
  sortBy(column) {
    const { sort } = this;
    this.sort = sort?.column !== column ? { column, sign: 1 } : sort.sign > 0 ? { column, sign: -1 } : null;
    this.draw(this.cells);
  }

  inOrder() {
    if (!this.sort) return this.sought().toSorted(byInterest);
    const { column, sign } = this.sort;
    const key = COLUMNS[column][1];
    return this.sought().toSorted((one, other) => {
      const [a, b] = [key(one), key(other)];
      if (a === null || b === null) return (a === null) - (b === null); // what is not known comes last
      return a === b ? byInterest(one, other) : sign * (a < b ? -1 : 1);
    });
  }

  /** All cells, or those that are looked for: each word begins one of a cell's name, routes or id. */
  sought() {
    const words = wordsOf(this.find.value);
    if (!words.length) return this.cells;
    return this.cells.filter(({ id }) => {
      const known = wordsOf(soughtOf(id).join(' '));
      return words.every((word) => known.some((one) => one.startsWith(word)));
    });
  }

  /** Draw these cells; focus and place stay where they were. */
  draw(cells) {
    this.cells = cells;
    this.shown = COLUMNS.map(([, key]) => !cells.length || cells.some((cell) => key(cell) !== null));
    const focused = this.body.contains(document.activeElement) && document.activeElement.closest('tr').dataset.cell;
    const seen = Math.ceil((this.scroller.scrollTop + this.scroller.clientHeight) / ROW_PX);
    const ordered = this.inOrder();
    this.turn += 1;
    if (!ordered.some(({ id }) => id === this.stop)) this.stop = ordered[0]?.id;
    this.body.replaceChildren();
    this.fill(ordered, 0, Math.max(FIRST_ROWS, seen), this.turn);
    if (focused) this.focus(focused);
    const found = ordered.length < cells.length ? `${ordered.length} of ${counted(cells.length, 'cell')}. ` : '';
    const said = found + (this.sort ? '' : 'Not as usual first, then measured and slow.');
    if (this.order.textContent !== said) this.order.textContent = said; // what is the same is not read out again
    this.grey.textContent = greyOf(cells);
    this.section.classList.toggle('named', hasNames());
    const isTraffic = cells.some(({ amount }) => amount?.noun === 'bus-hour');
    this.head.lastElementChild.firstElementChild.textContent = isTraffic ? 'Bus-h' : 'Buses';
    for (const [column, head] of [...this.head.children].entries()) {
      head.hidden = !this.shown[column];
      const sign = this.sort?.column === column ? this.sort.sign : 0;
      head.setAttribute('aria-sort', ['descending', 'none', 'ascending'][sign + 1]);
    }
  }

  /** Rows from one number to another, and then the rest; less is shown of a table that is drawn anew meanwhile. */
  fill(cells, from, to, turn) {
    if (turn !== this.turn || from >= cells.length) return;
    this.body.append(...cells.slice(from, to).map((cell) => this.rowOf(cell)));
    setTimeout(() => this.fill(cells, to, to + FIRST_ROWS, turn));
  }

  rowOf(cell) {
    const { id, kind, step, interval, guess, amount } = cell;
    const button = element('button', { type: 'button', 'aria-pressed': id === this.chosen,
      title: idOf(id), tabindex: id === this.stop ? 0 : -1 }, nameOf(id));
    const look = `chip ${kind}${step === null ? '' : ` step-${step}`}${cell.isMeasured ? '' : ' unmeasured'}`;
    const figures = [
      element('td', {}, element('span', { class: look }, numberOf(cell))),
      element('td', {}, interval ? rangeOf(interval, '–') : '–'),
      element('td', {}, guess === null ? '–' : String(Math.round(guess))),
      element('td', {}, amount ? amountFigure(amount) : '–',
        amount?.interval ? element('small', {}, amountRange(amount, '–')) : null),
    ];
    return element('tr', { 'data-cell': id, class: id === this.chosen ? 'chosen' : '' },
      element('th', { scope: 'row' }, button,
        cell.withdrawn === null ? null : element('span', { class: 'news' }, 'withdrawn'),
        cell.isNews ? element('span', { class: 'news' }, 'not as usual') : null),
      ...figures.filter((_, at) => this.shown[at + 1]));
  }

  choose(id) {
    const before = this.chosen;
    this.chosen = id;
    for (const row of [this.row(before), this.row(id)]) {
      if (!row) continue;
      row.classList.toggle('chosen', row.dataset.cell === id);
      row.querySelector('button').setAttribute('aria-pressed', row.dataset.cell === id);
    }
    this.row(id)?.scrollIntoView({ block: 'nearest' });
  }

  row(id) {
    return id && this.body.querySelector(`tr[data-cell="${CSS.escape(id)}"]`);
  }

  focus(id, preventScroll = true) {
    this.row(id)?.querySelector('button').focus({ preventScroll });
  }
}
