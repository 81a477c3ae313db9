// The promise of the records in words, what it does not hide, and what the newest day has spent of the budget.

import { element } from './panel.js';
import { budgetOf, dayOf, isWhole, warningsOf } from './words.js';

const at = (id) => document.getElementById(id);

function promiseOf(privacy) {
  const { period_epsilon: epsilon, delta } = privacy;
  const times = Math.exp(epsilon).toLocaleString('en', { maximumSignificantDigits: 2 });
  const hidden = isWhole(privacy) ? 'about one bus, not even that it was there,' : 'about how fast one bus drove';
  return `Whoever reads all that is published in ${budgetOf(privacy).per} learns almost nothing ${hidden} that could not be `
    + `learnt without that bus. Epsilon says how much is almost: at ${epsilon} a guess about the bus gets at most ${times} `
    + `times better${delta ? `, but for a chance of 1 in ${Math.round(1 / delta).toLocaleString('en')}` : ''}.`;
}

/** A program's list, where the operator has named a statement; else that of the promise. */
function openOf(privacy, statement) {
  if (isWhole(privacy)) return ['The list of cells, the times of slots and the settings. They are the same whatever buses do.'];
  return statement?.details.unprotected_quantities ?? [
    'which cells have buses in a slot, how many, and how many readings they sent', 'that a bus was in a cell'];
}

function spentOf(privacy, { day, share }) {
  if (isWhole(privacy)) return 'What a bus has spent is secret. It is at most its whole budget.';
  const percent = share < 1 ? `${Math.ceil(100 * share)} %` : 'all';
  return `The records of ${dayOf(`${day}T00:00`)} have cost a bus at most ${percent} of its budget. Most buses spent less.`;
}

/** What days and years add up to: amounts add up in rho, so epsilons grow by less. */
function yearOf({ day_epsilon: day }, year) {
  const ofDay = day ? ` It is let out day by day: an even day has epsilon ${day}, and more where earlier days left some.` : '';
  return `${ofDay} What a year adds up to is at most epsilon ${year}.`;
}

function wordsOf({ newest_release: privacy, statement, spent, year_epsilon: year }) {
  const section = (title, ...parts) => element('section', {}, element('h2', {}, title), ...parts);
  const { amount, per } = budgetOf(privacy);
  return [
    section('The promise', element('p', {}, promiseOf(privacy))),
    section('The budget', element('p', {}, `Each bus has a budget of ${amount} for ${per}. It is charged before anything `
      + 'is drawn. A bus that has spent it is left out until the next begins.'
      + yearOf(privacy, year) + (isWhole(privacy) ? ` By its speeds alone it loses at most epsilon ${privacy.swap_epsilon}.` : ''))),
    section('What is not hidden', element('ul', {}, ...openOf(privacy, statement).map((words) => element('li', {}, words)))),
    section('Spent so far, at most', element('p', {}, spentOf(privacy, spent))),
  ];
}

const answer = await (await fetch('v1/privacy', { cache: 'no-cache' })).json();
if (answer.newest_release) {
  at('said').replaceChildren(...wordsOf(answer));
  const warnings = warningsOf([], [{ privacy: answer.newest_release }]);
  at('banner').replaceChildren(...warnings.map((words) => element('p', {}, words)));
  at('banner').hidden = !warnings.length;
}
document.body.dataset.said = '';
