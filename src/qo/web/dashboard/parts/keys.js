// Keyboard shortcuts: single keys, and g followed by a view. They can be disabled, because some assistive tools type keys.

import {go} from './router.js';
import {helpDialog} from './help.js';

const PLACES = {o: '#/', t: '#/tasks', b: '#/batches', f: '#/workflows', w: '#/workers', s: '#/schedules', l: '#/limits', a: '#/audit'};
const SEQUENCE_TIMEOUT = 1200; // milliseconds between g and the second key

export const keyboard = {on: true};

export function listen(viewKeys) {
  let waitingUntil = 0;
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.key === 'Escape' && document.activeElement instanceof HTMLElement && isField(event.target)) {
      document.activeElement.blur();
      return;
    }
    if (!keyboard.on || isField(event.target) || document.querySelector('dialog[open]')) return;
    const place = performance.now() < waitingUntil ? PLACES[event.key] : undefined;
    waitingUntil = 0;
    if (place) {
      event.preventDefault();
      go(place);
    } else if (event.key === 'g') {
      waitingUntil = performance.now() + SEQUENCE_TIMEOUT;
    } else if (event.key === '?') {
      event.preventDefault();
      helpDialog();
    } else {
      // Enter and the space bar belong to the focused control.
      const onControl = (event.key === 'Enter' || event.key === ' ') && event.target.closest?.('a, button, summary, input, select');
      const act = viewKeys()[event.key];
      if (act && !onControl) {
        event.preventDefault();
        act(event);
      }
    }
  });
}

function isField(target) {
  return target instanceof HTMLElement && (target.isContentEditable
    || (target.matches('input, textarea, select') && !['checkbox', 'radio'].includes(target.type)));
}
