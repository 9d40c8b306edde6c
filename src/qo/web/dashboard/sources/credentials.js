// The fragment of a link: base64url of {k: access key id, t: session token, d: {date: derived key}, e: expiry in epoch
// seconds, w: write access, r: region, u: endpoint, b: bucket, p: prefix, l: layout}.

import {StoreError} from './s3.js';
import {textOf} from './values.js';

const HOW = 'create a link with: qo dashboard link';

export function parseFragment(fragment) {
  if (!fragment) {
    throw new StoreError('no_credentials', `This page needs credentials from a link or a code; ${HOW}`);
  }
  let said;
  try {
    said = JSON.parse(textOf(fragment.replaceAll('-', '+').replaceAll('_', '/')));
  } catch {
    throw new StoreError('no_credentials', `This link is incomplete or damaged; ${HOW}`);
  }
  const {k, t, d, e, w, r, u, b, p, l} = said;
  if (![k, r, b].every((text) => typeof text === 'string' && text) || typeof d !== 'object' || d === null) {
    throw new StoreError('no_credentials', `This link contains no credentials; ${HOW}`);
  }
  return {
    accessKeyId: k,
    sessionToken: t ?? '',
    keys: d,
    expires: e ?? 0,
    write: w === true,
    region: r,
    endpoint: u ?? '',
    bucket: b,
    prefix: p ?? '',
    layout: l ?? 'tasks',
  };
}
