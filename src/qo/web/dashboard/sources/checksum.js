// The CRC-32 of a document, appended as white space: a space for 0 and a tab for 1, as in qo/damage.py.

const BITS = 32;
const SEAL = /\n[ \t]{32}$/;
const TABLE = new Uint32Array(256).map((_, byte) => {
  let value = byte;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});

export function crc32(bytes) {
  let value = 0xffffffff;
  for (const byte of bytes) value = TABLE[(value ^ byte) & 0xff] ^ (value >>> 8);
  return (value ^ 0xffffffff) >>> 0;
}

function sealOf(text) {
  const bits = crc32(new TextEncoder().encode(text)).toString(2).padStart(BITS, '0');
  return `\n${bits.replaceAll('0', ' ').replaceAll('1', '\t')}`;
}

/** The document followed by its checksum. */
export function sealed(text) {
  return text + sealOf(text);
}

/** Parses a document. Throws if its checksum does not match; a document without one is accepted. */
export function parsed(text) {
  const found = SEAL.exec(text);
  if (found && sealOf(text.slice(0, found.index)) !== found[0]) throw new SyntaxError('the checksum does not match');
  return JSON.parse(text);
}
