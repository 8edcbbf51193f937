// Endpoints, definitions and sinks in three columns, and what leads from one to another.
const HIGH = 44, APART = 10, TOP = 26;

function cut(text, most) {
  return text.length <= most ? text : `${text.slice(0, Math.max(1, most - 1))}…`;
}

function column(parent, title, items, left, wide, places) {
  parent.append(svg('text', { x: left, y: 14, class: 'column' }, title));
  const letters = Math.floor((wide - 16) / (wide < 140 ? 6.6 : 7.4));
  items.forEach((item, at) => {
    const y = TOP + at * (HIGH + APART);
    places.set(item.key, { left, right: left + wide, middle: y + HIGH / 2 });
    parent.append(svg('g', {},
      svg('title', {}, `${item.full}: ${item.sub}`),
      svg('rect', { x: left, y, width: wide, height: HIGH, rx: 7, class: item.mark || null }),
      svg('text', { x: left + 8, y: y + 18 }, cut(item.name, letters)),
      svg('text', { x: left + 8, y: y + 35, class: 'sub' }, cut(item.sub, letters + 2))));
  });
}

function curve(from, to) {
  const bend = (to.left - from.right) / 2;
  return `M${from.right} ${from.middle}C${from.right + bend} ${from.middle} ${to.left - bend} ${to.middle} ${to.left} ${to.middle}`;
}

function perSecond(figure) { return figure.rate === null ? plural(figure.records, 'record') : `${rate(figure.rate)}/s`; }

// Replayed and removed letters are settled: what is open is what somebody has to look at.
const deadText = (dead) => dead.open === null ? `${number(dead.records)} in all` : `${number(dead.open)} open of ${number(dead.records)}`;

function drawFlow(flow) {
  const target = $('flow'), caption = $('flow-text');
  if (!flow) { target.replaceChildren(); target.setAttribute('height', '0'); return; }
  const wide = Math.max(300, target.parentElement.clientWidth || 300);
  const gap = wide < 640 ? Math.max(18, wide * 0.06) : wide * 0.13;
  const box = (wide - 2 * gap - 2) / 3;
  const endpoints = flow.endpoints.map((each) => ({
    key: `e${each.endpoint}`, full: each.endpoint, name: short(each.endpoint), sub: perSecond(each.routed),
  }));
  const busy = flow.definitions.filter((each) => !each.gone || each.rate).slice(0, 24);
  const definitions = busy.map((each) => ({ key: `d${each.definition}`, full: each.definition, name: short(each.definition), sub: perSecond(each) }));
  const dead = flow.totals.dead_letters;
  if (dead.records) definitions.push({ key: 'dead', full: 'Records that match no definition', name: 'Dead letters', mark: dead.open === 0 ? null : 'dead', sub: `${perSecond(dead)}${dead.rate === null ? '' : `, ${deadText(dead)}`}` });
  const sinks = flow.sinks.map((each) => ({
    key: `s${each.sink}`, full: `${each.sink} (${each.type})`, name: each.sink, mark: each.holds.length ? 'held' : null,
    sub: each.holds.length ? 'batch blocked' : `${each.type}${each.last_error ? `, error at ${utc(each.last_error.at).slice(11)}` : ''}`,
  }));
  const tall = TOP + Math.max(endpoints.length, definitions.length, sinks.length, 1) * (HIGH + APART);
  const lines = svg('g', {}), boxes = svg('g', {}), places = new Map();
  column(boxes, 'Endpoints', endpoints, 1, box, places);
  column(boxes, 'Definitions', definitions, 1 + box + gap, box, places);
  column(boxes, 'Sinks', sinks, 1 + 2 * (box + gap), box, places);
  const rates = new Map(flow.definitions.map((each) => [each.definition, each.rate || 0]));
  const draw = (from, to, speed, letters) => {
    if (!from || !to) return;
    const kinds = [letters ? 'letters' : '', speed ? 'moving' : ''].join(' ').trim();
    lines.append(svg('path', { d: curve(from, to), class: kinds || null, 'stroke-width': (1.5 + Math.min(4, Math.log10(1 + speed))).toFixed(1) }));
  };
  const taking = new Map();
  for (const link of flow.links) {
    if (link.kind === 'definition') draw(places.get(`e${link.from}`), places.get(`d${link.to}`), rates.get(link.to) || 0, false);
    else if (link.kind === 'sink') draw(places.get(`d${link.from}`), places.get(`s${link.to}`), link.rate || 0, false);
    else if (link.records !== 0) taking.set(link.to, (taking.get(link.to) || 0) + (link.rate || 0));
  }
  for (const each of flow.endpoints) if (each.dead_letters.records) draw(places.get(`e${each.endpoint}`), places.get('dead'), each.dead_letters.rate || 0, true);
  for (const [sink, speed] of taking) draw(places.get('dead'), places.get(`s${sink}`), speed, true);
  target.setAttribute('viewBox', `0 0 ${wide} ${tall}`);
  target.setAttribute('height', tall);
  target.replaceChildren(lines, boxes);
  const moving = busy.filter((each) => each.rate);
  const left = flow.left_out.definitions + flow.definitions.length - busy.length;
  setText(caption, `${plural(endpoints.length, 'endpoint')}, ${plural(busy.length, 'definition')}${left > 0 ? ` shown and ${number(left)} more` : ''}, ${plural(sinks.length, 'sink')}. `
    + (moving.length ? `Busiest: ${moving.slice(0, 3).map((each) => `${short(each.definition)} ${rate(each.rate)}/s`).join(', ')}. ` : 'Nothing flows right now. ')
    + (dead.records ? `Dead letters: ${deadText(dead)}.` : 'No dead letters so far.'));
}
