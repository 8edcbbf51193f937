// Dead letters, one of them whole, and records that are pasted.
const LETTER_COLUMNS = [['Written', 'keep'], ['Reason', 'keep'], ['Endpoint'], ['Nearest definition', 'text'], ['First mismatch', 'text'], ['Status']];
let opened = '';

function mismatchText(each) {
  return each ? `${each.property}: expected ${each.expected ?? 'nothing'}, found ${each.found ?? 'nothing'}` : '';
}

function showLetters(letters) {
  keyed($('letters'), letters, (each) => each.letter, (each) => {
    const node = row(LETTER_COLUMNS, true);
    const open = el('button', { type: 'button', class: 'link', 'aria-haspopup': 'dialog' }, '');
    open.addEventListener('click', () => openLetter(each.letter));
    node.children[0].append(open);
    return node;
  }, (node, each) => {
    const open = node.children[0].firstChild;
    setText(open, each.failed ? utc(each.failed) : each.letter.slice(0, 12));
    open.setAttribute('aria-label', `Open the dead letter of ${open.textContent}, ${each.reason}`);
    setText(node.children[1], each.reason);
    setText(node.children[2], each.endpoint || '–');
    setText(node.children[3], each.definition ? short(each.definition) : '–');
    node.children[3].title = each.definition || '';
    setText(node.children[4], mismatchText(each.mismatch) || each.detail || '–');
    setText(node.children[5], each.attempts > 1 ? `${each.standing}, ${each.attempts} attempts` : each.standing);
  });
}

let lettersAsked = false;
async function loadLetters() {
  if (lettersAsked) return;
  lettersAsked = true;
  try {
    const told = await ask('/letters.json');
    showLetters(told.letters);
    setText($('letters-note'), told.letters.length ? `The newest ${number(told.letters.length)}. Sensitive values are hidden.` : 'There are none.');
    $('letters-note').className = 'note';
  } catch (error) {
    setText($('letters-note'), error.message);
    $('letters-note').className = 'note bad';
  }
  lettersAsked = false;
}

function facts(pairs) {
  const list = el('dl', {});
  for (const [name, value] of pairs) if (value !== null && value !== undefined && value !== '') list.append(el('dt', {}, name), el('dd', {}, value));
  return list;
}

function checkItem(check) {
  const found = check.found ?? (check.holds ? 'absent (optional)' : 'nothing');
  const text = check.holds ? `${check.property}: ${found}` : `${check.property}: expected ${check.expected ?? ''}, found ${found}`;
  return el('li', { class: check.holds ? null : 'bad' }, `${check.holds ? '✓' : '✗'} ${text}`);
}

function candidatePart(each) {
  const good = each.matches && (!each.schema.length || each.schema[0] === 'fits');
  return el('div', { class: each.wins ? 'candidate wins' : 'candidate' },
    el('p', {}, el('strong', { class: good ? 'good' : null }, `${good ? '✓' : '✗'} ${each.message}`), `: ${each.verdict}`),
    el('ul', { class: 'checks' }, ...each.checks.map(checkItem),
      ...each.schema.map((line) => el('li', { class: line === 'fits' ? null : 'bad' }, `${line === 'fits' ? '✓' : '✗'} schema: ${line}`))));
}

function outcomeText(verdict) {
  if (verdict.outcome === 'routed') return `Routed to ${verdict.message}, written to ${verdict.sinks.join(', ') || 'no sink'}.`;
  return `Dead letter, ${verdict.reason}${verdict.detail ? `: ${verdict.detail}` : ''}.`;
}

function attributes(title, values) {
  const pairs = Object.entries(values || {});
  return pairs.length ? [el('h3', {}, title), facts(pairs.map(([name, value]) => [name, typeof value === 'string' ? value : JSON.stringify(value)]))] : [];
}

function explainedParts(now) {
  const story = now.explained;
  const parts = [el('p', {}, el('strong', { class: now.verdict.outcome === 'routed' ? 'good' : 'bad' }, outcomeText(now.verdict)))];
  if (story.error) parts.push(el('p', { class: 'bad' }, story.error));
  for (const event of story.events) {
    if (event.place >= 0) parts.push(el('h3', {}, `Event ${event.place} of the batch`));
    parts.push(el('p', { class: 'quiet' }, `Envelope: ${event.mode}.${event.why ? ` Why: ${event.why}.` : ''}`));
    for (const fault of event.faults) parts.push(el('p', { class: 'bad' }, fault));
    parts.push(...event.candidates.map(candidatePart));
    if (event.more) parts.push(el('p', { class: 'quiet' }, `and ${plural(event.more, 'more candidate')}`));
    if (event.outcome.outcome === 'routed') parts.push(...attributes('Context', event.outcome.context), ...attributes('CloudEvent', event.outcome.cloudevent));
  }
  return parts;
}

function replayPart(letter, access) {
  if (!access.replay) return el('p', { class: 'quiet' }, 'Replays from this page are off; set metrics.token.');
  const note = el('p', { role: 'status', id: 'replay-note' }, '');
  const button = el('button', { type: 'button', class: 'main', id: 'replay' }, 'Replay');
  if (letter.standing === 'replayed') { button.disabled = true; setText(note, 'Already replayed.'); }
  button.addEventListener('click', async () => {
    button.disabled = true;
    setText(note, 'Requesting the replay…');
    try {
      await ask(`/letters/${letter.letter}/replay`, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: '{}' });
      setText(note, 'Replay in progress.');
    } catch (error) {
      setText(note, error.message);
      button.disabled = false;
    }
  });
  return el('div', {}, button, note);
}

function showReplays(told) {
  const note = $('replay-note');
  const mine = note && told.replays.find((each) => each.letter === opened);
  if (!mine || mine.state === 'running') return;
  const word = mine.state === 'done' && mine.outcome === 'routed' ? `Replayed: routed to ${mine.detail}.`
    : mine.outcome === 'dead-letter' ? `Replayed; still a dead letter: ${mine.detail}.` : `Not replayed (${mine.state}): ${mine.detail}.`;
  if (note.dataset.began !== mine.began) {
    note.dataset.began = mine.began;
    $('replay').disabled = mine.outcome === 'routed';
    setText(note, word);
    loadLetters();
  }
}

async function openLetter(id) {
  const dialog = $('letter'), body = $('letter-body');
  opened = id;
  body.replaceChildren(el('p', { role: 'status' }, 'Loading…'));
  setText($('letter-title'), `Dead letter ${id.slice(0, 12)}`);
  if (!dialog.open) dialog.showModal();
  $('letter-title').focus();
  try {
    const letter = await ask(`/letters/${id}.json`);
    if (opened !== id) return;
    const history = letter.history.map((each) => el('li', {}, time(each.at), ` ${each.what}${each.reason ? `: ${each.reason}, ${each.detail}` : ''}`));
    body.replaceChildren(
      facts([['Reason', letter.reason], ['Detail', letter.detail], ['Endpoint', letter.endpoint], ['Written', time(letter.failed)],
        ['Received', letter.received ? time(letter.received) : ''], ['Position', letter.position], ['Epoch', letter.epoch], ['Status', `${letter.standing}, ${plural(letter.attempts, 'attempt')}`],
        ['Waiting behind it', letter.behind ? `${number(letter.behind)} of the same key` : ''], ['Sink', letter.sink]]),
      el('h3', {}, 'With the current catalog'), ...explainedParts(letter.now), replayPart(letter, access),
      el('h3', {}, `Record (${letter.protocol})`), facts(letter.native),
      el('h3', {}, letter.body === null ? 'No body' : `Body, ${bytes(letter.body_bytes)}${letter.body_cut ? ', cut' : ''}`), letter.body === null ? null : el('pre', { tabindex: '0', 'aria-label': 'Body' }, letter.body),
      ...(letter.nearest.length ? [el('h3', {}, 'When it was written'), ...letter.nearest.map((near) => el('div', { class: 'candidate' }, el('p', {}, el('strong', {}, near.message)),
        el('ul', { class: 'checks' }, ...near.mismatches.map((each) => el('li', { class: 'bad' }, `✗ ${mismatchText(each)}`)))))] : []),
      ...(history.length ? [el('h3', {}, 'History'), el('ul', {}, ...history)] : []));
  } catch (error) {
    if (opened === id) body.replaceChildren(el('p', { class: 'bad', role: 'alert' }, error.message));
  }
}

async function judge(event) {
  event.preventDefault();
  const verdict = $('verdict'), text = $('record').value.trim();
  if (!text) { $('record').focus(); return; }
  verdict.replaceChildren(el('p', {}, 'Evaluating…'));
  try {
    verdict.replaceChildren(...explainedParts(await ask('/verdict', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: text })));
  } catch (error) {
    verdict.replaceChildren(el('p', { class: 'bad' }, error.message));
  }
}
