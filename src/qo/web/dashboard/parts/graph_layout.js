// Where the boxes of a layered graph go: layers from left to right, few crossings, straight lines where possible. Parts that
// no line connects are below one another.

export const BOX = {width: 176, height: 46};
const GAP = {x: 54, y: 14};
const WAY_HEIGHT = 10; // of a line that passes a layer
const MAX_WAYS = 3000; // places at which lines pass layers; more lines are drawn straight
const ORDER_PASSES = 8;
const MOVE_PASSES = 12;
const MARGIN = 10;

// `boxes` are [{layer}], `lines` are [[from, to]]. Returns the size, the place of each box, and the points of each line.
export function layOut(boxes, lines) {
  const nodes = boxes.map(({layer}) => ({layer, height: BOX.height, before: [], after: []}));
  const chains = chainsOf(nodes, boxes, lines);
  const layers = layersOf(nodes);
  let top = MARGIN;
  for (const part of partsOf(nodes)) top = placePart(layersOf(part), top);
  const height = top - GAP.y + MARGIN;
  const width = MARGIN * 2 + layers.length * BOX.width + (layers.length - 1) * GAP.x;
  const x = (node) => MARGIN + node.layer * (BOX.width + GAP.x);
  return {
    width, height,
    places: nodes.slice(0, boxes.length).map((node) => ({x: x(node), y: node.y})),
    paths: chains.map((chain) => curve(chain, x)),
  };
}

function layersOf(nodes) {
  const layers = [];
  for (const node of nodes) (layers[node.layer] ??= []).push(node);
  return layers.filter(Boolean);
}

// The connected parts of a graph, the largest first.
function partsOf(nodes) {
  const parts = [];
  const seen = new Set();
  for (const node of nodes) {
    if (seen.has(node)) continue;
    seen.add(node);
    const part = [node];
    for (const each of part) {
      for (const near of [...each.before, ...each.after]) {
        if (!seen.has(near)) part.push(near);
        seen.add(near);
      }
    }
    parts.push(part);
  }
  return parts.sort((one, other) => other.length - one.length);
}

// Returns where the next part may begin.
function placePart(layers, top) {
  for (const layer of layers) layer.forEach((node, at) => { node.at = at; });
  for (let pass = 0; pass < ORDER_PASSES; pass += 1) order(layers, pass % 2 === 0);
  place(layers);
  const nodes = layers.flat();
  const shift = top - Math.min(...nodes.map((node) => node.y));
  for (const node of nodes) node.y += shift;
  return Math.max(...nodes.map((node) => node.y + node.height)) + GAP.y;
}

// A line to a far layer passes all layers between, so that it takes a way around their boxes.
function chainsOf(nodes, boxes, lines) {
  const ways = lines.reduce((sum, [from, to]) => sum + boxes[to].layer - boxes[from].layer - 1, 0);
  return lines.map(([from, to]) => {
    const chain = [nodes[from]];
    for (let layer = boxes[from].layer + 1; ways <= MAX_WAYS && layer < boxes[to].layer; layer += 1) {
      const way = {layer, height: WAY_HEIGHT, before: [], after: []};
      nodes.push(way);
      chain.push(way);
    }
    chain.push(nodes[to]);
    chain.slice(1).forEach((node, at) => {
      chain[at].after.push(node);
      node.before.push(chain[at]);
    });
    return chain;
  });
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

// Sorts each layer by the mean position of its neighbours.
function order(layers, forwards) {
  for (const layer of forwards ? layers : [...layers].reverse()) {
    for (const node of layer) {
      const near = forwards ? node.before : node.after;
      node.wish = near.length ? mean(near.map((each) => each.at)) : node.at;
    }
    layer.sort((one, other) => one.wish - other.wish || one.at - other.at);
    layer.forEach((node, at) => { node.at = at; });
  }
}

// Moves each box towards the mean height of its neighbours, as far as the boxes above and below it permit.
function place(layers) {
  for (const layer of layers) stack(layer, layer.map(() => 0));
  for (let pass = 0; pass < MOVE_PASSES; pass += 1) {
    for (const layer of pass % 2 ? [...layers].reverse() : layers) {
      stack(layer, layer.map((node) => {
        const near = pass % 2 ? node.after : node.before;
        return near.length ? mean(near.map(middle)) - node.height / 2 : node.y;
      }));
    }
  }
}

const middle = (node) => node.y + node.height / 2;

// The mean of two solutions: boxes pushed down by those above, and pushed up by those below.
function stack(layer, wishes) {
  const down = [];
  const up = [];
  layer.forEach((node, at) => {
    down[at] = at ? Math.max(wishes[at], down[at - 1] + layer[at - 1].height + GAP.y) : wishes[at];
  });
  for (let at = layer.length - 1; at >= 0; at -= 1) {
    up[at] = at < layer.length - 1 ? Math.min(wishes[at], up[at + 1] - layer[at].height - GAP.y) : wishes[at];
  }
  layer.forEach((node, at) => { node.y = (down[at] + up[at]) / 2; });
}

function curve(chain, x) {
  const points = chain.flatMap((node, at) => [
    ...(at ? [[x(node), middle(node)]] : []),
    ...(at < chain.length - 1 ? [[x(node) + BOX.width, middle(node)]] : []),
  ]);
  return points.reduce((path, [px, py], at) => {
    if (!at) return `M${px},${py.toFixed(1)}`;
    const [lastX, lastY] = points[at - 1];
    const bend = (px - lastX) / 2;
    return `${path}C${lastX + bend},${lastY.toFixed(1)} ${px - bend},${py.toFixed(1)} ${px},${py.toFixed(1)}`;
  }, '');
}
