// The view is part of the URL: #/tasks?status=failed can be bookmarked, shared and reached by the back button.

// {view: 'task', id, params}
export function parse(hash) {
  const [path, query = ''] = hash.replace(/^#\/?/, '').split('?', 2);
  const params = new URLSearchParams(query);
  const [first = '', second] = path.split('/').map(decode);
  if (first === 'tasks' && second) return {view: 'task', id: second, params};
  if (first === 'tasks') return {view: 'tasks', params};
  if (first === 'batches' && second) return {view: 'batch', id: second, params};
  if (first === 'batches') return {view: 'batches', params};
  if (first === 'workflows' && second) return {view: 'workflow', id: second, params};
  if (first === 'workflows') return {view: 'workflows', params};
  if (first === 'workers') return {view: 'workers', params};
  if (first === 'schedules') return {view: 'schedules', params};
  if (first === 'limits') return {view: 'limits', params};
  if (first === 'audit') return {view: 'audit', params};
  if (first === 'login') return {view: 'login', params};
  return {view: first === '' ? 'overview' : 'not_found', params};
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function address(view, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== '' && each !== null && each !== undefined) query.append(name, each);
    }
  }
  const text = query.toString();
  return `#/${view}${text ? `?${text}` : ''}`;
}

export const taskAddress = (id) => `#/tasks/${encodeURIComponent(id)}`;

export const batchAddress = (id) => `#/batches/${encodeURIComponent(id)}`;

export const workflowAddress = (id) => `#/workflows/${encodeURIComponent(id)}`;

export function go(to, {replace = false} = {}) {
  if (replace) history.replaceState(null, '', to);
  else if (location.hash !== to) history.pushState(null, '', to);
  window.dispatchEvent(new Event('qo:moved'));
}
