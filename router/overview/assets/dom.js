// What is shown comes from catalogs and records: it gets in as text alone, never as markup.
const SVG = 'http://www.w3.org/2000/svg';
const $ = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) node.removeAttribute(name);
    else node.setAttribute(name, value === true ? '' : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
const el = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

function setText(node, text) {
  const wanted = String(text ?? '');
  if (node.textContent !== wanted) node.textContent = wanted;
}

// Rows keep their elements from one look to the next, so that focus and open parts stay where they are.
function keyed(parent, items, keyOf, make, update) {
  const known = new Map([...parent.children].map((node) => [node.dataset.key, node]));
  let before = null;
  for (const item of items) {
    const key = keyOf(item);
    let node = known.get(key);
    if (!node) { node = make(item); node.dataset.key = key; }
    known.delete(key);
    if (update) update(node, item);
    const next = before ? before.nextSibling : parent.firstChild;
    if (next !== node) parent.insertBefore(node, next);
    before = node;
  }
  for (const node of known.values()) node.remove();
}

function row(columns, header) {
  return el('tr', { role: 'row' }, ...columns.map(([label, kind], at) => at === 0 && header
    ? el('th', { scope: 'row', role: 'rowheader', class: kind || null })
    : el('td', { class: kind || null, role: 'cell', 'data-label': label })));
}

const NUMBER = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const number = (value) => value === null || value === undefined ? '–' : NUMBER.format(value);
function rate(value) {
  if (value === null || value === undefined) return '–';
  if (value === 0) return '0';
  return value >= 100 ? NUMBER.format(value) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}
function seconds(value) {
  if (value === null || value === undefined) return '–';
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 120) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86400)} days`;
}
function bytes(value) {
  if (!value) return '0 B';
  const power = Math.min(4, Math.floor(Math.log2(value) / 10));
  return `${(value / 1024 ** power).toFixed(power && value / 1024 ** power < 10 ? 1 : 0)} ${['B', 'KiB', 'MiB', 'GiB', 'TiB'][power]}`;
}
const utc = (text) => `${text.replace('T', ' ').slice(0, 19)} UTC`;
const time = (text) => text ? el('time', { datetime: text, title: text }, utc(text)) : '–';
const short = (xid) => String(xid).split('/').pop() || String(xid);
const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? '' : 's'}`;

const FIGURES = '/status.json'; // for all who reach the port
let token = '';
async function ask(path, options = {}) {
  const headers = { ...(options.headers || {}) };
  if (token && path !== FIGURES) headers.Authorization = `Bearer ${token}`;
  const answer = await fetch(path, { ...options, headers, credentials: 'omit', cache: 'no-store' });
  let told = {};
  try { told = await answer.json(); } catch { /* an answer without JSON says it by its status */ }
  if (answer.status === 401) token = ''; // It is asked for again.
  if (!answer.ok) throw new Error(told.detail || told.error || `the router responded with ${answer.status}`);
  return told;
}
