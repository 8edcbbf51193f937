// State, sources, time of batches, and what became of catalogs.
function showState(told) {
  const state = $('state');
  setText(state, told.ready ? 'ready' : 'not ready');
  state.className = `badge ${told.ready ? 'good' : 'bad'}`;
  document.title = `${told.ready ? '' : 'not ready: '}xrouter`;
  const catalog = told.catalog;
  setText($('facts'), [
    `version ${told.router.version}`, `up ${seconds(told.router.seconds)}`,
    catalog.epoch ? `${plural(catalog.definitions, 'definition')}, epoch ${catalog.epoch.slice(0, 12)}` : 'no catalog',
  ].join(' · '));
  const waits = [
    ...told.reasons,
    ...(catalog.refused_findings ? [`the newest catalog was rejected: ${plural(catalog.refused_findings, 'finding')} below`] : []),
    ...(catalog.held ? [`a changed catalog is pending: ${catalog.held}`] : []),
    ...catalog.awaited.map((uri) => `a changed catalog has an unreachable reference: ${uri}`),
    ...catalog.doubted.map((reason) => `a catalog change needs confirmation: ${reason}`),
  ];
  $('reasons-section').hidden = !waits.length;
  keyed($('reasons'), waits, (each) => each, (each) => el('li', {}, each));
}

const SOURCE_COLUMNS = [['Endpoint'], ['Arriving/s', 'n'], ['Finished/s', 'n'], ['Routed', 'n'], ['Dead letters', 'n'], ['Lag', 'n'], ['Oldest unprocessed'], ['Last record'], ['Query'], ['Last hour', 'hour']];
// The router draws them: a new picture twice a minute.
const chart = (name, endpoint, alt) => el('img', { src: `/history/${name}.svg?small&endpoint=${encodeURIComponent(endpoint)}`, alt, title: alt, width: 160, height: 35, loading: 'lazy' });
const CHARTS_EVERY = 30000;
let charted = Date.now();
function refreshCharts() {
  if (Date.now() - charted < CHARTS_EVERY) return;
  charted = Date.now();
  for (const image of document.querySelectorAll('img')) {
    const at = new URL(image.src);
    at.searchParams.set('at', charted);
    image.src = at.pathname + at.search;
  }
}

function showSources(told) {
  const flow = told.flow;
  keyed($('sources'), flow ? flow.endpoints : [], (each) => each.endpoint, (each) => {
    const node = row(SOURCE_COLUMNS, true);
    node.lastChild.append(chart('records', each.endpoint, 'Records/s over the last hour'), chart('lag', each.endpoint, 'Lag over the last hour'));
    return node;
  }, (node, each) => {
    const cells = node.children, query = told.queries[each.query], dead = each.dead_letters;
    setText(cells[0], `${each.endpoint}${each.protocol ? ` (${each.protocol})` : ''}`);
    setText(cells[1], rate(each.arriving.rate));
    setText(cells[2], rate(each.routed.rate === null ? null : each.routed.rate + dead.rate + each.empty.rate));
    setText(cells[3], number(each.routed.records));
    setText(cells[4], number(dead.records));
    cells[4].className = dead.rate ? 'n bad' : 'n'; // Red while there are new ones.
    setText(cells[5], each.lag !== null ? number(each.lag - each.worked) : each.pushed && told.inbox.records !== null ? `of ${number(told.inbox.records)} in the inbox` : '–');
    const oldest = each.oldest_seconds;
    setText(cells[6], oldest === null ? '–' : oldest === 0 ? 'none' : `${seconds(oldest)} old`);
    setText(cells[7], each.last_record ? utc(each.last_record) : 'never');
    setText(cells[8], query ? `${each.query}: ${query.state}` : '–');
    cells[8].className = query && query.state !== 'running' ? 'bad' : '';
  });
  showUnseen(told.coverage);
  setText($('inbox'), told.inbox.bytes ? `The inbox has ${plural(told.inbox.records || 0, 'record')} and ${bytes(told.inbox.bytes)} on disk.` : '');
  const latency = told.latency;
  setText($('latency'), latency.p95_seconds === null ? 'No records were finished in the last minute.' : `In the last minute, half of all records reached their sinks within ${seconds(latency.p50_seconds)}, 95 % within ${seconds(latency.p95_seconds)}.`);
  const errors = (flow ? flow.sinks : []).filter((each) => each.last_error);
  $('sink-errors').hidden = !errors.length;
  keyed($('sink-errors'), errors, (each) => each.sink, () => el('li', {}), (node, each) => {
    node.className = each.holds.length ? 'bad' : 'quiet';
    setText(node, `${each.holds.length ? 'Error' : 'Resolved error'}: ${each.last_error.text} (last at ${utc(each.last_error.at)})`);
  });
  refreshCharts();
}

function showUnseen(coverage) {
  $('unseen-section').hidden = !coverage.unseen;
  setText($('unseen-title'), `${number(coverage.unseen)} of ${plural(coverage.expected, 'expected definition')} never seen`);
  const named = coverage.unseen_definitions, more = coverage.unseen - named.length;
  const items = named.map((each) => [`${each.endpoint} ${each.definition}`, `${each.definition} at ${each.endpoint}, expected since ${utc(each.since)}`]);
  if (more > 0) items.push(['more', `and ${number(more)} more; list them with xrouter routes --unseen`]);
  keyed($('unseen'), items, (each) => each[0], () => el('li', {}), (node, each) => setText(node, each[1]));
}

function showDefinitions(flow) {
  const sinks = new Map();
  for (const link of flow ? flow.links : []) if (link.kind === 'sink') sinks.set(link.from, [...(sinks.get(link.from) || []), link.to]);
  keyed($('definitions'), flow ? flow.definitions : [], (each) => each.definition, () => row([['Definition'], ['', 'n'], ['', 'n'], ['']], true), (node, each) => {
    setText(node.children[0], each.definition + (each.gone ? ' (no longer in the catalog)' : ''));
    setText(node.children[1], rate(each.rate));
    setText(node.children[2], number(each.records));
    setText(node.children[3], (sinks.get(each.definition) || []).join(', ') || '–');
  });
}

const STEPS = { judge: 'read and match', held: 'blocked', rest: 'planning and commit', source: 'polling' };
const stepName = (step) => STEPS[step] || `write to ${step.replace(/^sink /, '')}`;
function stepClass(step, sinks) {
  return STEPS[step] ? `s-${step}` : `s-sink${sinks.indexOf(step) % 3}`;
}

function bar(parent, steps) {
  const sinks = steps.map((each) => each.step).filter((step) => !STEPS[step]);
  const whole = steps.reduce((sum, each) => sum + each.seconds, 0) || 1;
  const line = el('div', { class: 'bar', 'aria-hidden': 'true' });
  const legend = el('ul', { class: 'legend' });
  for (const each of [...steps].sort((a, b) => b.seconds - a.seconds)) {
    const part = el('span', { class: stepClass(each.step, sinks) });
    part.style.width = `${(100 * each.seconds / whole).toFixed(2)}%`;
    line.append(part);
    legend.append(el('li', {}, el('i', { class: stepClass(each.step, sinks), 'aria-hidden': 'true' }),
      `${stepName(each.step)}: ${seconds(each.seconds)} (${Math.round(100 * each.seconds / whole)} %)`));
  }
  parent.replaceChildren(line, legend);
}

function showQueries(told) {
  const names = Object.keys(told.queries);
  keyed($('queries'), names, (name) => name, (name) => el('div', {}, el('h3', {}, name), el('p', { class: 'quiet' }), el('div', {})), (node, name) => {
    const query = told.queries[name], times = query.time || {}, recent = times.recent;
    const words = [`${query.state}${query.reason ? `: ${query.reason}` : ''}`];
    if (query.held_by.length) words.push(`blocked by ${query.held_by.map((sink) => sink || 'dead_letters.max_ratio').join(', ')}`);
    if (times.now) words.push(`batch ${times.now.batch}: ${stepName(times.now.step)} for ${seconds(times.now.step_seconds)}`);
    else if (times.last) words.push(`last batch ${times.last.batch}: ${plural(times.last.records, 'record')} in ${seconds(times.last.seconds)}`);
    setText(node.children[1], words.join(' · '));
    node.children[1].className = query.state === 'running' ? 'quiet' : 'bad';
    if (recent && recent.batches) {
      const found = times.source_seconds === null ? [] : [{ step: 'source', seconds: times.source_seconds * recent.batches }];
      const stamp = JSON.stringify([recent, found]);
      if (node.dataset.stamp !== stamp) { node.dataset.stamp = stamp; bar(node.children[2], [...recent.steps, ...found]); }
    }
  });
}

function changeText(change) {
  const side = (value) => value === null ? 'nothing' : typeof value === 'string' ? value : JSON.stringify(value);
  const sides = change.before !== null || change.after !== null ? `: ${side(change.before)} → ${side(change.after)}` : '';
  return `${change.kind} ${change.xid}${change.name ? ` ${change.name}` : ''}${change.relation ? ` (${change.relation})` : ''}${sides}${change.detail ? `: ${change.detail}` : ''}`;
}

function epochParts(each) {
  const difference = each.difference;
  const what = each.result === 'refused'
    ? `refused${each.times > 1 ? ` ${each.times} times` : ''}: ${plural(each.findings_total, 'finding')}`
    : `${plural(each.definitions, 'definition')}, epoch ${each.epoch.slice(0, 12)}${difference ? `, ${plural(difference.total, 'change')}${difference.incompatible ? `, ${difference.incompatible} incompatible` : ''}` : ''}`;
  const summary = el('summary', { class: each.result === 'refused' ? 'bad' : null }, time(each.at), ` ${what}`);
  const list = el('ul', {});
  for (const finding of each.findings) {
    list.append(el('li', {}, `${finding.severity} ${finding.rule}: ${finding.message}${finding.hint ? ` (${finding.hint})` : ''}`, el('br'), el('code', {}, `${finding.file}${finding.pointer ? `#${finding.pointer}` : ''}`)));
  }
  for (const change of difference ? difference.changes : []) {
    list.append(el('li', { class: change.compatible ? null : 'bad' }, `${change.compatible ? '' : 'incompatible: '}${changeText(change)}`));
  }
  const more = difference ? difference.total - difference.changes.length : each.findings_total - each.findings.length;
  if (more > 0) list.append(el('li', { class: 'quiet' }, `and ${number(more)} more`));
  if (!list.children.length) list.append(el('li', { class: 'quiet' }, difference ? 'Nothing changed for consumers.' : 'Changes are unknown: this was the first catalog, or another one followed at once.'));
  return [summary, list];
}

function showEpochs(told) {
  setText($('epochs-note'), told.epochs.length ? 'Newest first, since the start of this process.' : 'No catalog is active yet.');
  keyed($('epochs'), told.epochs, (each) => `${each.at} ${each.epoch}`, () => el('li', {}, el('details', {})), (node, each) => {
    const stamp = JSON.stringify([each.difference, each.findings, each.times]);
    if (node.dataset.stamp === stamp) return;
    node.dataset.stamp = stamp;
    node.firstChild.replaceChildren(...epochParts(each));
  });
}
