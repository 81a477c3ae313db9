// The map: one outline per cell, changed in place. Colours are the stylesheet's; this sets classes.

import { briefOf, nameOf, numberOf, STEPS_KMH } from './words.js';
import { element, svg } from './panel.js';

const STRIPES_PX = 18; // narrower cells have no stripes
const NUMBERS_PX = 34; // narrower cells have no numbers
const MARK_PX = 7;
const AROUND = 0.5; // of the view, drawn beyond its edge
const FINE = 1.5; // of a line's simplification on the screen
const { L } = window;

export class CellMap {
  /** `choose` is called with a cell's id when it is clicked. */
  constructor(container, choose) {
    const isStill = matchMedia('(prefers-reduced-motion: reduce)').matches;
    this.container = container;
    this.renderer = L.svg({ padding: AROUND });
    this.map = L.map(container, {
      renderer: this.renderer, attributionControl: false, zoomSnap: 0.1, maxZoom: 16, minZoom: 2,
      zoomAnimation: !isStill, fadeAnimation: false, inertia: !isStill,
    }).setView([0, 0], 2);
    L.control.scale({ imperial: false, position: 'bottomright' }).addTo(this.map);
    this.map.createPane('lines').style.zIndex = 300;
    this.group = L.featureGroup().addTo(this.map);
    this.group.bindTooltip(({ cell }) => element('span', {}, `${nameOf(cell.id)}: ${briefOf(cell)}`), { sticky: true });
    this.group.on('click', (event) => choose(event.sourceTarget.cell.id));
    this.polygons = new Map();
    this.outlines = {};
    this.cells = [];
    this.chosen = null;
    this.renderer.addTo(this.map);
    this.defineStripes();
    this.over = this.groupOver();
    this.drawTiles(container.dataset.tiles);
    this.map.on('moveend', () => this.drawOver());
    new ResizeObserver(() => this.map.invalidateSize({ pan: false })).observe(container);
    this.map.on('zoomend', () => this.measure());
  }

  /** Patterns are the map's own: a stylesheet cannot name one. */
  defineStripes() {
    const root = this.container.querySelector('.leaflet-overlay-pane svg');
    const stripes = STEPS_KMH.map((_, step) => svg('pattern', {
      id: `stripes-${step}`, width: 7, height: 7, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)',
      class: `step-${step}` },
    svg('rect', { width: 7, height: 7, class: 'ground' }), svg('rect', { width: 3.5, height: 7, class: 'stripe' })));
    root.append(svg('defs', {}, ...stripes));
  }

  /** What is written over the shapes; nothing beneath them is seen through it. */
  groupOver() {
    const pane = this.map.createPane('marks');
    pane.style.zIndex = 450;
    L.svg({ pane: 'marks', padding: AROUND }).addTo(this.map);
    const over = svg('g', { class: 'over', 'aria-hidden': 'true' });
    pane.firstChild.append(over);
    return over;
  }

  /** Pictures of the ground, where the page's owner names a server of them. */
  drawTiles(address) {
    if (!address) return;
    const tiles = L.tileLayer(address, { maxZoom: 19, referrerPolicy: 'origin' });
    tiles._removeTile = L.GridLayer.prototype._removeTile; // Leaflet's own puts a data: image in, which no policy allows
    tiles.addTo(this.map);
  }

  /** The lines of the network, beneath the cells. One path for all, so that none is styled or found alone. */
  drawLines(lines) {
    this.lines?.remove();
    if (!lines.length) return;
    this.container.dataset.lines = lines.length;
    this.linesOn ??= L.svg({ pane: 'lines', padding: AROUND });
    const renderer = this.linesOn;
    this.lines = L.polyline(lines.map((line) => line.map(([lon, lat]) => [lat, lon])),
      { renderer, pane: 'lines', interactive: false, smoothFactor: FINE, className: 'network' }).addTo(this.map);
  }

  /** Draw a slot's cells. The view stays as it is, but for the first of all. */
  draw(cells, outlines) {
    this.cells = cells.filter(({ id }) => outlines[id]);
    this.outlines = outlines;
    const ids = new Set(this.cells.map(({ id }) => id));
    for (const [id, polygon] of this.polygons) {
      if (ids.has(id)) continue;
      this.group.removeLayer(polygon);
      this.polygons.delete(id);
    }
    for (const cell of this.cells) this.drawCell(cell);
    if (!this.isPlaced && this.cells.length) this.showWhole();
    this.drawOver();
  }

  drawCell(cell) {
    let polygon = this.polygons.get(cell.id);
    if (!polygon) {
      const rings = this.outlines[cell.id].map((ring) => [ring.map(([lon, lat]) => [lat, lon])]);
      polygon = L.polygon(rings, { renderer: this.renderer }).addTo(this.group);
      this.polygons.set(cell.id, polygon);
      polygon.getElement().dataset.cell = cell.id;
    }
    polygon.cell = cell;
    const isGuess = cell.kind === 'dotted';
    const look = [cell.kind, isGuess ? '' : `step-${cell.step}`, cell.isMeasured ? '' : 'unmeasured', cell.isNews ? 'news' : '',
      cell.id === this.chosen ? 'chosen' : ''].join(' ');
    if (look === polygon.look) return; // most cells look as they did: the browser need not style them anew
    polygon.look = look;
    const path = polygon.getElement();
    path.setAttribute('class', `leaflet-interactive cell ${look}`);
    path.setAttribute('fill', cell.kind === 'striped' ? `url(#stripes-${cell.step})` : 'none');
  }

  choose(id) {
    const before = this.chosen;
    this.chosen = id;
    for (const polygon of [this.polygons.get(before), this.polygons.get(id)]) {
      if (polygon) this.drawCell(polygon.cell);
    }
    const polygon = this.polygons.get(id);
    if (!polygon) return;
    polygon.bringToFront();
    this.map.panInside(polygon.getCenter(), { padding: [60, 60] });
  }

  /** Fit all cells into the view, but for stray ones far from the others. */
  showWhole() {
    const centres = this.cells.map((cell) => this.centreOf(cell));
    const middle = (list) => list.sort((one, other) => one - other)[Math.floor(list.length / 2)];
    const centre = L.latLng(middle(centres.map(({ lat }) => lat)), middle(centres.map(({ lng }) => lng)));
    const reach = 6 * middle(centres.map((place) => place.distanceTo(centre))) + 1;
    const near = this.cells.filter((_, i) => centres[i].distanceTo(centre) <= reach);
    const bounds = L.latLngBounds([]);
    for (const { id } of near) bounds.extend(this.polygons.get(id).getBounds());
    this.map.invalidateSize({ pan: false }).fitBounds(bounds, { padding: [8, 8], animate: false });
    this.isPlaced = true;
  }

  /** How wide cells are on the screen decides what they can bear. */
  measure() {
    const polygon = this.polygons.values().next().value;
    if (!polygon) return;
    const box = polygon.getBounds();
    const [one, other] = [box.getNorthWest(), box.getSouthEast()].map((place) => this.map.latLngToLayerPoint(place));
    this.width = Math.max(other.x - one.x, other.y - one.y);
    this.container.dataset.size = this.width < STRIPES_PX ? 'small' : this.width < NUMBERS_PX ? 'medium' : 'large';
    this.drawOver();
  }

  /** Of its outline: a cell of the typical week alone has no record that says it. */
  centreOf({ id }) {
    return this.polygons.get(id).getBounds().getCenter();
  }

  /** Numbers and marks, in view only. */
  drawOver() {
    const view = this.map.getBounds().pad(AROUND);
    const drawn = [];
    for (const cell of this.cells) {
      const place = this.centreOf(cell);
      if (!view.contains(place)) continue;
      const hasNumber = cell.kind !== 'dotted' && this.width >= NUMBERS_PX;
      const { x, y } = this.map.latLngToLayerPoint(place);
      if (cell.isNews) drawn.push(markAt(x, hasNumber ? y - this.width * 0.3 : y));
      if (!hasNumber) continue;
      drawn.push(svg('text', { x, y: y + (cell.isNews ? 8 : 4), class: `${cell.kind} step-${cell.step}` }, numberOf(cell)));
    }
    this.over.replaceChildren(...drawn);
  }
}

/** A triangle that warns: a shape, so that it is seen without colour. */
export function markAt(x, y) {
  const r = MARK_PX;
  return svg('g', { class: 'mark', transform: `translate(${x} ${y})` },
    svg('path', { d: `M0 ${-r - 2} L${r + 2} ${r} H${-r - 2} Z` }), svg('path', { class: 'cry', d: 'M0 -4 V2 M0 4 V5.4' }));
}
