// Numbers as people read them: three figures, the unit apart.
const few = (value, digits = 3) => value.toLocaleString("en", { maximumSignificantDigits: digits });
export const count = (value) => value >= 10000 ? `${few(value / 1000)}k` : few(value);
export const duration = (seconds) => seconds == null ? null : seconds < 0.9995 ? [few(seconds * 1000), "ms"] : [few(seconds), "s"];
export const timed = (seconds) => { const read = duration(seconds); return read ? read.join(" ") : "–"; };
export const percent = (share) => share == null ? "–" : few(share * 100);
export const ago = (at, now) => {
  const seconds = Math.max(0, now - at);
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  return seconds < 86400 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
};
