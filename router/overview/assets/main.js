// Asks for the figures every two seconds, while somebody looks.
const EVERY = 2000, LETTERS = 10000;
let access = { records: 'nobody', replay: false };
let latest = null, paused = false, asking = false, written = -1, looked = 0;

function showAccess(told) {
  access = told.access;
  $('token-form').hidden = access.records !== 'token' || Boolean(token);
  const closed = access.records === 'nobody' || (access.records === 'token' && !token);
  $('letters-again').disabled = closed;
  $('try').querySelector('button').disabled = closed;
  const why = access.records === 'nobody' ? 'Records are not shown here; set metrics.token.' : 'Records are shown with the token; enter it above.';
  if (closed) { setText($('letters-note'), why); setText($('try-help'), why); return; }
  setText($('try-help'), 'It is evaluated with the current catalog and settings, and not sent anywhere.');
  const dead = told.flow ? told.flow.totals.dead_letters.records : 0;
  if (told.catalog.epoch && dead !== written && Date.now() - looked > LETTERS) { written = dead; looked = Date.now(); loadLetters(); }
}

function show(told) {
  latest = told;
  showState(told);
  drawFlow(told.flow);
  showDefinitions(told.flow);
  showSources(told);
  showQueries(told);
  showEpochs(told);
  showShadow(told);
  showAccess(told);
  showReplays(told);
}

async function look() {
  if (asking || paused || document.hidden) return;
  asking = true;
  try {
    show(await ask(FIGURES));
  } catch (error) {
    setText($('state'), 'unreachable');
    $('state').className = 'badge bad';
    if (!(error instanceof TypeError)) setText($('facts'), error.message);
  }
  asking = false;
}

$('pause').addEventListener('click', () => {
  paused = !paused;
  $('pause').setAttribute('aria-pressed', String(paused));
  setText($('pause'), paused ? 'Resume updates' : 'Pause updates');
  look();
});
$('token-form').addEventListener('submit', (event) => {
  event.preventDefault();
  const given = $('token').value.trim();
  $('token').value = '';
  if (!/^[\x20-\x7e]*$/.test(given)) { setText($('letters-note'), 'The token contains invalid characters; check it, and enter it again.'); return; }
  token = given;
  written = -1;
  looked = 0;
  look();
});
$('letters-again').addEventListener('click', loadLetters);
$('letter-close').addEventListener('click', () => $('letter').close());
$('letter').addEventListener('close', () => { opened = ''; });
$('try').addEventListener('submit', judge);
document.addEventListener('visibilitychange', look);
new ResizeObserver(() => latest && drawFlow(latest.flow)).observe($('flow').parentElement);
setInterval(look, EVERY);
look();
