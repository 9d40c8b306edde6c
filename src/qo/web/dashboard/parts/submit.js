// Submits a form, once at a time. An error is shown in the form, which keeps its content.

import {h} from './dom.js';
import {sentence} from './format.js';

export const problemLine = () => h('p', {class: 'bad', role: 'alert', hidden: true});

/** Whether `send` succeeded. */
export async function submit(button, problem, send) {
  button.disabled = true;
  try {
    await send();
    return true;
  } catch (error) {
    problem.hidden = false;
    problem.textContent = sentence(error.message);
    return false;
  } finally {
    button.disabled = false;
  }
}
