// Icons: 20 by 20, one path each.

import {svg} from './dom.js';

const PATHS = {
  overview: 'M3 11h5V3H3zM12 17h5V9h-5zM3 17h5v-3H3zM12 6h5V3h-5z',
  tasks: 'M7 5h10M7 10h10M7 15h10M3 5h.01M3 10h.01M3 15h.01',
  batches: 'M3 4h6v5H3zM11 4h6v5h-6zM3 11h6v5H3zM11 11h6v5h-6z',
  workflows: 'M3 8h4v4H3zM13 3h4v4h-4zM13 13h4v4h-4zM7 10h3M13 5h-3v10h3',
  workers: 'M4 4h12v5H4zM4 11h12v5H4zM7 6.5h.01M7 13.5h.01',
  schedules: 'M10 3a7 7 0 1 0 .01 0M10 6v4l3 2',
  limits: 'M4 15a7 7 0 1 1 12 0M10 12l3-4',
  audit: 'M5 3h7l3 3v11H5zM8 9h4M8 12h4',
  replay: 'M4 10a6 6 0 1 0 2-4.5M4 3v3.5h3.5',
  cancel: 'M10 3a7 7 0 1 0 .01 0M6.5 13.5l7-7',
  archive: 'M3 4h14v3H3zM4.5 7v9h11V7M8 10h4',
  delete: 'M4 6h12M8 6V4h4v2M6 6l.7 10h6.6L14 6',
  pause: 'M7 5v10M13 5v10',
  resume: 'M7 4.5v11l8-5.5z',
  theme: 'M10 3a7 7 0 1 0 7 7 5.5 5.5 0 0 1-7-7z',
  help: 'M7.5 7.5a2.5 2.5 0 1 1 3.6 2.2c-.8.4-1.1.9-1.1 1.8M10 14.5h.01',
  clock: 'M10 3a7 7 0 1 0 .01 0M10 6v4l3 2',
  copy: 'M7 7h9v9H7zM4 13V4h9',
  close: 'M5 5l10 10M15 5L5 15',
  search: 'M9 4a5 5 0 1 0 .01 0M13 13l4 4',
  back: 'M12 5l-5 5 5 5',
  next: 'M8 5l5 5-5 5',
  drain: 'M4 4h12l-4.5 6v6l-3-2v-4z',
  broom: 'M12 3l-3 7M5 17c0-4 2-7 4-7s4 3 4 7zM9 14v3',
  gauge: 'M4 15a7 7 0 1 1 12 0M10 12l3-4',
};

export function icon(name) {
  return svg('svg', {viewBox: '0 0 20 20', class: 'icon', 'aria-hidden': 'true', focusable: 'false'}, svg('path', {d: PATHS[name]}));
}
