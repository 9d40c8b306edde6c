// Server-sent events by fetch, because EventSource cannot send a token. Disconnects while the page is hidden.

const MIN_DELAY = 1000; // milliseconds
const MAX_DELAY = 15_000;
const MAX_SILENCE = 40_000; // milliseconds; the server sends something every 15 seconds

// `ask(signal)` resolves to a streaming response. Returns a function that stops listening.
export function listen(ask, onEvent, onState) {
  let stopped = false;
  let abort = new AbortController();
  let wake = () => {};
  const changed = () => {
    if (document.hidden) abort.abort();
    wake();
  };
  document.addEventListener('visibilitychange', changed);
  run();
  return () => {
    stopped = true;
    abort.abort();
    wake();
    document.removeEventListener('visibilitychange', changed);
  };

  async function run() {
    let pause = MIN_DELAY;
    while (!stopped) {
      if (document.hidden) {
        await new Promise((resolve) => { wake = resolve; });
        continue;
      }
      abort = new AbortController();
      try {
        const answer = await ask(abort.signal);
        onState('live');
        pause = MIN_DELAY;
        await read(answer.body, onEvent, abort);
      } catch (error) {
        if (error.code === 'unauthorized') return; // the page asks for a token and then starts again
      }
      if (stopped || document.hidden) continue;
      onState('away');
      await new Promise((resolve) => { wake = resolve; setTimeout(resolve, pause); });
      pause = Math.min(pause * 2, MAX_DELAY);
    }
  }
}

// Ends after a silence as well: a lost connection may never report an error.
async function read(stream, onEvent, abort) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const silence = setTimeout(() => abort.abort(), MAX_SILENCE);
    const {done, value} = await reader.read().finally(() => clearTimeout(silence));
    if (done) return;
    rest += value;
    const messages = rest.split('\n\n');
    rest = messages.pop();
    for (const message of messages) {
      const kind = /^event: (.*)$/m.exec(message);
      if (kind) onEvent(kind[1]);
    }
  }
}
