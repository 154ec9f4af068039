// Numbers as people read them: three figures, the unit apart.
const few = (value, digits = 3) => value.toLocaleString("en", { maximumSignificantDigits: digits });
export const count = (value) => value >= 10000 ? `${few(value / 1000)}k` : few(value, value < 1 ? 2 : 3);
// The gateway's own bins are right within 6 %, so more than two figures of a small number would only flicker.
const rough = (value) => few(value, value < 100 ? 2 : 3);
export const duration = (seconds) => seconds == null ? null : seconds < 0.9995 ? [rough(seconds * 1000), "ms"] : [rough(seconds), "s"];
export const timed = (seconds) => duration(seconds)?.join(" ") ?? "–";
// The second without its unit where it is that of the first.
export const alike = (a, b) => { const [first, second] = [duration(a), duration(b)]; return first && second && first[1] === second[1] ? second[0] : timed(b); };
// "182 / 640 ms": two times of one kind, the unit once where it is the same.
export const both = (a, b) => { const second = duration(b); return !duration(a) || !second ? timed(a) : alike(a, b) === second[0] ? `${duration(a)[0]} / ${timed(b)}` : `${timed(a)} / ${timed(b)}`; };
export const percent = (share) => share == null ? "–" : share >= 0.1 ? String(Math.round(share * 100)) : few(share * 100, 2);
export const ago = (at, now) => {
  const seconds = Math.max(0, now - at);
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  return seconds < 86400 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
};
