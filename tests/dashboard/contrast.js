// Everything that can be read or pressed on the page, checked: contrast of text (WCAG AA), and a name for each control.
(() => {
  const colour = (text) => (text.match(/[\d.]+/g) ?? []).map(Number);
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgba = (text) => {
    if (!text.startsWith('rgb')) { // color-mix and the like: let the browser say what it comes to
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = text;
      canvas.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
      return [r, g, b, a / 255];
    }
    const [r, g, b, a = 1] = colour(text);
    return [r, g, b, a];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
  const ground = (element) => {
    const layers = [];
    for (let node = element; node; node = node.parentElement) layers.push(rgba(getComputedStyle(node).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((value) => value / 255).map((value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (one, other) => {
    const [high, low] = [light(one), light(other)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  const problems = [];
  const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const seen = new Set();
  for (let node = words.nextNode(); node; node = words.nextNode()) {
    const element = node.parentElement;
    if (!node.textContent.trim() || seen.has(element) || element.closest('svg, noscript, option, .unseen, :disabled') || !element.checkVisibility({opacityProperty: true})) continue;
    seen.add(element);
    const style = getComputedStyle(element);
    const below = ground(element);
    let faint = 1;
    for (let at = element; at; at = at.parentElement) faint *= Number(getComputedStyle(at).opacity);
    const [r, g, b, a] = rgba(style.color);
    const found = ratio(over([r, g, b, a * faint], below), below);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && Number(style.fontWeight) >= 700);
    if (found < (large ? 3 : 4.5)) problems.push(`${found.toFixed(2)}: ${element.className} ${node.textContent.trim().slice(0, 30)}`);
  }
  for (const control of document.querySelectorAll('a, button, input, select, [role="img"]')) {
    if (!control.checkVisibility()) continue;
    const name = control.getAttribute('aria-label') ?? (control.textContent.trim() || control.labels?.[0]?.textContent.trim() || control.title);
    if (!name) problems.push(`no name: ${control.outerHTML.slice(0, 80)}`);
  }
  if (document.querySelectorAll('h1').length !== 1) problems.push('not one h1');
  return JSON.stringify(problems);
})()
