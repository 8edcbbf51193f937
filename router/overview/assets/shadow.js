// What the catalog beside the active one would change, in the words of `xrouter plan`.
const DIFFERENCES = {
  'dead-letter': 'newly dead-lettered', definition: 'matched by another definition', route: 'differently routed',
  event: 'routed with a changed event', reason: 'dead letters for another reason', matched: 'newly matched',
};
const SHADOW_STATES = {
  loading: 'It is not evaluating records yet.', judging: 'It evaluates the same records as the active catalog, and only counts differences.',
  active: 'It is the active catalog now; the figures are from before.', 'set-aside': 'It is disabled until it changes.',
};

function shadowWords(shadow) {
  const words = [SHADOW_STATES[shadow.state] || shadow.state];
  if (shadow.after) words.push(`Epoch ${shadow.after.slice(0, 12)} against ${shadow.before.slice(0, 12)}, since ${utc(shadow.since)}: ${plural(shadow.outcomes, 'record')} compared, ${number(shadow.unchanged)} unchanged, ${number(shadow.left_out + shadow.failed)} not compared.`);
  if (shadow.reason) words.push(`The shadow catalog cannot be used: ${shadow.reason}.`);
  if (shadow.failed) words.push(`Evaluation failed for ${plural(shadow.failed, 'record')}: ${Object.keys(shadow.errors).join(', ')}.`);
  return [...words, ...shadow.notes.map((note) => `Note: ${note}.`)].join(' ');
}

function showShadow(told) {
  const shadow = told.shadow;
  $('shadow').hidden = !shadow;
  if (!shadow) return;
  setText($('shadow-note'), shadowWords(shadow));
  $('shadow-note').classList.toggle('bad', Boolean(shadow.reason));
  keyed($('shadow-endpoints'), shadow.endpoints, (each) => each.endpoint, () => row([['Endpoint'], ['Compared', 'n'], ['Not compared', 'n'], ['Unchanged', 'n'], ['Differences']], true), (node, each) => {
    const changed = Object.entries(each.changed).filter(([, count]) => count);
    [each.endpoint || 'none', number(each.outcomes), number(each.left_out + each.failed), number(each.unchanged),
      changed.map(([kind, count]) => `${number(count)} ${DIFFERENCES[kind] || kind}`).join(', ') || '–',
    ].forEach((text, at) => setText(node.children[at], text));
  });
  keyed($('shadow-groups'), shadow.groups, (each) => `${each.kind} ${each.before} ${each.after}`, () => el('li', {}), (node, each) => {
    setText(node, `${number(each.outcomes)} ${DIFFERENCES[each.kind] || each.kind}: ${each.before === each.after ? each.before : `${each.before} → ${each.after}`}`);
  });
}
