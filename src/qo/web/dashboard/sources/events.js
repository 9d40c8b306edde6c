// Server-sent events by fetch: the browser's own EventSource cannot send a token. Nothing is asked for while hidden.

const FIRST_PAUSE = 1000; // milliseconds
const LONGEST_PAUSE = 15_000;

// `ask(signal)` resolves to a streaming answer. Returns stop().
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
    let pause = FIRST_PAUSE;
    while (!stopped) {
      if (document.hidden) {
        await new Promise((resolve) => { wake = resolve; });
        continue;
      }
      abort = new AbortController();
      try {
        const answer = await ask(abort.signal);
        onState('live');
        pause = FIRST_PAUSE;
        await read(answer.body, onEvent);
      } catch (error) {
        if (error.code === 'unauthorized') return; // the page asks for a token, then starts us again
      }
      if (stopped || document.hidden) continue;
      onState('away');
      await new Promise((resolve) => { wake = resolve; setTimeout(resolve, pause); });
      pause = Math.min(pause * 2, LONGEST_PAUSE);
    }
  }
}

async function read(stream, onEvent) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const {done, value} = await reader.read();
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
